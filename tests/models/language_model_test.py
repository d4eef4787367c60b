"""Language models: parts of a sequence, carried states, files."""

import keras
import numpy as np
import pytest
from keras import ops, tree

from keras_rfa.layers import RandomFeatureAttention
from keras_rfa.models import LanguageModel, language_model
from keras_rfa.models.attention import ATTENTIONS
from keras_rfa.testing import (
    as_numpy,
    assert_close,
    compiled,
    differentiated,
)

TOKENS = 20
SIZES = {
    "num_layers": 2,
    "hidden_dim": 8,
    "num_heads": 2,
    "intermediate_dim": 16,
}
IDS = np.random.default_rng(0).integers(1, TOKENS, (3, 11), dtype="int32")


def own_attention(num_heads, key_dim, name, **options):
    return RandomFeatureAttention(
        num_heads, key_dim, feature_map="elu", name=name, **options
    )


def model(**arguments):
    return language_model(TOKENS, **{**SIZES, **arguments})


def perturbed(**arguments):
    """A model in which no weight is all 0 or all 1."""
    built = model(**arguments)
    random = np.random.default_rng(1)
    for weight in built.trainable_weights:
        noise = 0.1 * random.normal(size=weight.shape)
        weight.assign(as_numpy(weight) + noise.astype("float32"))
    return built


def read(built, blocks, batch_size=3, max_length=30):
    """Reads blocks of ids; returns the logits of each, and the last state."""
    state = built.get_initial_state(batch_size, max_length=max_length)
    logits = []
    for ids in blocks:
        outputs, state = built.call_with_state(ids, state)
        logits.append(as_numpy(outputs))
    return logits, state


@pytest.mark.parametrize(
    "arguments",
    [
        *(pytest.param({"attention": name}, id=name) for name in ATTENTIONS),
        pytest.param({"attention": own_attention}, id="own"),
        {"convolution": 3},
        {"positions": True},
        {"normalize_first": False, "attention": "rfa"},
    ],
)
def test_parts_give_the_logits_of_the_whole(arguments):
    built = perturbed(**arguments)
    assert built.input_shape == (None, None)
    assert built.output_shape == (None, None, TOKENS)
    whole = as_numpy(built(IDS))
    first, *others = np.split(IDS, [4, 5, 6], axis=1)
    logits, state = read(built, [first.tolist(), *others])
    assert_close("parts", np.concatenate(logits, axis=1), whole, 1e-5)
    np.testing.assert_array_equal(as_numpy(state["position"]), [11] * 3)
    assert np.abs(whole[0] - whole[1]).max() > 1e-2


@pytest.mark.parametrize("attention", ["rfa_gated", "linear", "softmax"])
@pytest.mark.parametrize("convolution", [1, 4])
def test_ragged_rows(attention, convolution):
    built = perturbed(attention=attention, convolution=convolution)
    whole = as_numpy(built(IDS))
    # Two blocks in which the rows have 5, 0 and 2, then 1, 4 and 9 tokens.
    blocks = np.zeros((2, 3, 9), "int32")
    for row, (first, second) in enumerate([(5, 1), (0, 4), (2, 9)]):
        blocks[0, row, 2 : 2 + first] = IDS[row, :first]
        blocks[1, row, 9 - second :] = IDS[row, first : first + second]
    logits, state = read(built, blocks)
    for row, count in enumerate((6, 4, 11)):
        given = np.concatenate([x[row] for x in logits])
        real = np.concatenate(blocks[:, row]) > 0
        assert_close(f"row {row}", given[real], whole[row, :count], 1e-5)
    np.testing.assert_array_equal(as_numpy(state["position"]), [6, 4, 11])


def test_every_tensor_of_a_state_has_the_rows_first():
    for attention in ("rfa_gated", "softmax"):
        built = model(attention=attention, convolution=3)
        _, state = read(built, [IDS])
        for tensor in tree.flatten(state):
            assert tensor.shape[0] == 3
        picked = tree.map_structure(
            lambda x: ops.convert_to_numpy(x)[[2, 0, 0]], state
        )
        actual, _ = built.call_with_state(IDS[[2, 0, 0], :1], picked)
        expected, _ = built.call_with_state(IDS[:, :1], state)
        expected = as_numpy(expected)[[2, 0, 0]]
        assert_close("rows", as_numpy(actual), expected, 1e-5)


def test_steps_that_a_state_has_room_for():
    assert model().free_steps(model().get_initial_state(1)) is None
    softmax = model(attention="softmax")
    _, state = read(softmax, [IDS], max_length=15)
    assert softmax.free_steps(state) == 4
    with pytest.raises(ValueError, match="pass `max_length`"):
        softmax.get_initial_state(1)


def test_embeddings_give_the_logits():
    built = model()
    embedding = built.get_layer("embedding")
    shapes = [weight.shape for weight in built.trainable_weights]
    assert sum(TOKENS in shape for shape in shapes) == 1
    vectors = keras.Model(built.input, built.get_layer("norm").output)(IDS)
    expected = as_numpy(vectors) @ as_numpy(embedding.embeddings).T
    assert_close("logits", as_numpy(built(IDS)), expected, 1e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_dtypes(policy):
    keras.config.set_dtype_policy(policy)
    try:
        built = model(convolution=2)
        softmax = model(attention="softmax")
    finally:
        keras.config.set_dtype_policy("float32")
    for each in (built, softmax):
        logits, state = read(each, np.split(IDS, [4], axis=1))
        outputs = each(IDS)
        assert keras.backend.standardize_dtype(outputs.dtype) == "float32"
        whole = as_numpy(outputs)
        assert_close("parts", np.concatenate(logits, axis=1), whole, 2e-2)
    dtype = keras.backend.standardize_dtype(
        state["block_0"]["self"]["key"].dtype
    )
    assert dtype == policy[6:]


@pytest.mark.parametrize("stateful", [False, True])
def test_files(stateful, tmp_path):
    carries = {"stateful": True, "batch_size": 3} if stateful else {}
    built = perturbed(convolution=3, **carries)
    expected = [as_numpy(built(IDS)) for _ in range(2)]
    built.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, LanguageModel)
    actual = [as_numpy(loaded(IDS)) for _ in range(2)]
    assert_close("logits", actual, expected, 1e-6)
    assert (np.abs(actual[0] - actual[1]).max() > 1e-3) == stateful
    clone = keras.models.clone_model(built)
    assert clone.free_steps(clone.get_initial_state(1)) is None


def test_int8():
    built = perturbed(convolution=3, attention="rfa")
    built.quantize("int8")
    whole = as_numpy(built(IDS))
    logits, _ = read(built, np.split(IDS, [4], axis=1))
    assert_close("parts", np.concatenate(logits, axis=1), whole, 5e-2)


def test_stateful_batches_are_one_long_sequence():
    plain = perturbed(convolution=4)
    carries = model(convolution=4, stateful=True, batch_size=3)
    copy_weights(plain, carries)
    whole = as_numpy(plain(IDS))
    for _ in range(2):
        carries.reset_state()
        segments = [
            carries.predict(ids, batch_size=3, verbose=0)
            for ids in np.split(IDS, [4, 5], axis=1)
        ]
        assert_close("logits", np.concatenate(segments, axis=1), whole, 1e-5)


def test_stateful_training_goes_on_from_the_state_before():
    options = {"attention_options": {"seed": 3}, "dropout": 0.0}
    carries = model(stateful=True, batch_size=3, **options)
    twin = model(**options)
    copy_weights(carries, twin)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    xla = keras.backend.backend() != "torch"
    carries.compile(keras.optimizers.SGD(0.5), loss, jit_compile=xla)
    carries.reset_state()
    state = carries.training_state.read()
    segments = np.concatenate([IDS[:, :5], IDS[:, 5:10]])  # two batches
    labels = np.concatenate([IDS[:, 1:6], IDS[:, 6:11]])
    carries.fit(segments, labels, batch_size=3, shuffle=False, verbose=0)

    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build(twin.trainable_variables)
    for ids, targets in ((IDS[:, :5], IDS[:, 1:6]), (IDS[:, 5:10], IDS[:, 6:])):

        def total(x, ids=ids, targets=targets, state=state):
            logits, last = twin.call_with_state(ids, state, training=True)
            return x * loss(targets, logits), last

        run = compiled(differentiated(total, twin.trainable_variables))
        _, state, _, gradients = run(np.ones((), "float32"))
        state = tree.map_structure(lambda x: np.asarray(x, kept(x)), state)
        optimizer.apply(
            [ops.convert_to_tensor(x) for x in gradients],
            twin.trainable_variables,
        )
    expected = [as_numpy(x) for x in twin.trainable_variables]
    actual = [as_numpy(x) for x in carries.trainable_variables]
    for a, b in zip(actual, expected, strict=True):
        assert_close("weights", a, b, 1e-5)
    carried = carries.training_state.read()["block_0"]["self"]
    assert_close("state", as_numpy(carried["s"]), state["block_0"]["self"]["s"])


def kept(array):
    """The dtype of an array of a state, which comparisons widen."""
    return "float32" if array.dtype.kind == "f" else array.dtype


def copy_weights(source, target):
    """Sets all weights but carried states."""
    pairs = zip(
        *(
            [w for w in x.weights if "carried_state" not in w.path]
            for x in (source, target)
        ),
        strict=True,
    )
    for one, other in pairs:  # not the same array: training on JAX takes it
        other.assign(ops.convert_to_numpy(one))


def test_a_reset_draws_the_matrices_of_training():
    carries = model(stateful=True, batch_size=2)

    def indices():
        state = carries.training_state.read()
        return as_numpy(state["block_0"]["self"]["indices"]).tolist()

    drawn = set()
    for _ in range(4):
        carries.reset_state()
        drawn.add(tuple(indices()))
        before = indices()
        carries(IDS[:2], training=True)
        assert indices() == before
    assert len(drawn) > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stateful": True}, r"pass `batch_size`"),
        (
            {"stateful": True, "batch_size": 2, "attention": "softmax"},
            r"does not grow.*'softmax'",
        ),
        ({"attention": "none"}, r"must be one of.*'linear'.*'none'"),
        ({"hidden_dim": 9}, r"multiple of `num_heads`.*hidden_dim=9"),
        ({"num_layers": 0}, r"`num_layers` must be.*num_layers=0"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        model(**arguments)


def test_errors_of_states():
    built = model()
    with pytest.raises(ValueError, match="carries no state"):
        built.reset_state()
    state = built.get_initial_state(2)
    with pytest.raises(ValueError, match=r"position.*batch=3.*\(2,\)"):
        built.call_with_state(IDS, state)
    with pytest.raises(ValueError, match=r"token_ids.*batch, steps"):
        built.call_with_state(IDS[0], state)
