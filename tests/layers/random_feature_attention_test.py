import json

import keras
import numpy as np
import pytest
from keras import ops

from keras_rfa.layers import (
    CrossRandomFeatureAttention,
    GatedRandomFeatureAttention,
    RandomFeatureAttention,
    RandomProjectionPool,
)
from keras_rfa.testing import (
    as_numpy,
    assert_close,
    assert_finite,
    compiled,
    differentiated,
)

HEADS, WIDTH = 2, 8
X = np.random.default_rng(0).normal(size=(3, 6, WIDTH)).astype("float32")
MASK = np.arange(6) < [[6], [4], [1]]


def attention(layer=RandomFeatureAttention, **arguments):
    arguments = {"num_features": 16, "seed": 1, **arguments}
    return layer(HEADS, 4, **arguments)


LAYERS = [
    RandomFeatureAttention,
    GatedRandomFeatureAttention,
    CrossRandomFeatureAttention,
]


@pytest.mark.parametrize("layer", LAYERS)
def test_shapes(layer):
    made = attention(layer, value_dim=5, output_shape=7)
    query, value = keras.Input((6, WIDTH)), keras.Input((6, 3))
    output, scores = made(query, value, return_attention_scores=True)
    assert output.shape == (None, 6, 7)
    assert scores.shape == (None, HEADS, 6, 6)
    assert made.compute_output_shape((None, 6, WIDTH)) == (None, 6, 7)
    assert made.value_dense.kernel.shape == (3, HEADS, 5)
    outputs, _ = compiled(
        lambda q, v: made(q, v, return_attention_scores=True)
    )(X, X[..., :3])
    assert outputs.shape == (3, 6, 7)


def test_keys_may_differ_from_values():
    layer = attention(use_bias=False)
    layer.build(X.shape, X.shape, X.shape)
    key = X[::-1]
    actual = compiled(lambda q, v, k: layer(q, v, key=k))(X, X, key)
    layer.value_dense.kernel.assign(0 * layer.value_dense.kernel)
    call = compiled(lambda q, v, k: layer(q, v, key=k))
    assert np.abs(actual).max() > 0.01
    assert not np.any(call(X, X, key))


@pytest.mark.parametrize(
    "masks",
    [
        {"value_mask": MASK},
        {"key_mask": MASK},
        {"attention_mask": MASK[:, None, :]},
        {"attention_mask": MASK[:, None, None, :]},
        {"value_mask": MASK | (np.arange(6) == 5), "key_mask": MASK},
        {
            "value_mask": MASK | (np.arange(6) == 5),
            "key_mask": MASK | (np.arange(6) == 2),
            "attention_mask": (MASK | (np.arange(6) == 4))[:, None],
            "query_mask": ~MASK,
        },
    ],
    ids=lambda masks: "-".join(masks),
)
def test_masks_mean_that_a_key_counts_where_all_say_so(masks):
    layer = attention()
    layer.build(X.shape, X.shape)
    actual = compiled(lambda x, masks: layer(x, x, **masks))(X, masks)
    for row, length in enumerate((6, 4, 1)):
        alone = compiled(lambda x, y: layer(x, y))(
            X[row : row + 1], X[row : row + 1, :length]
        )
        assert_close(f"row {row}", actual[row], alone[0])


def test_embeddings_give_their_mask():
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, WIDTH, mask_zero=True)(ids)
    y = attention()(x, x)
    model = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(y))
    padded = np.array([[3, 4, 5, 0, 0], [0, 3, 0, 4, 5]])
    expected = model.predict(np.array([[3, 4, 5]]), verbose=0)
    actual = model.predict(padded, verbose=0)
    assert_close("padded", actual, np.repeat(expected, 2, axis=0))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_state_can_be_read_without_keys(layer):
    made = attention(layer)
    made.build(X.shape, X.shape)
    causal = layer is GatedRandomFeatureAttention

    def call(x):
        expected, state = made(x, x, return_state=True, use_causal_mask=causal)
        output, after = made(x, initial_state=state, return_state=True)
        # The last step has seen every key, in a causal layer too.
        return output[:, -1], expected[:, -1], state, after

    output, expected, state, after = compiled(call)(X)
    assert_close("output", output, expected)
    assert_close("state", after, state)


@pytest.mark.parametrize(
    "policy", ["float32", "mixed_float16", "mixed_bfloat16"]
)
@pytest.mark.parametrize("layer", LAYERS[:2])
def test_states_are_float32(policy, layer):
    made = attention(layer, dtype=policy)
    made.build(X.shape)
    initial = made.get_initial_state(3)
    half = ops.cast(X, made.compute_dtype)
    output, state = made(half, half, use_causal_mask=True, return_state=True)
    output, state = made(
        half,
        half,
        use_causal_mask=True,
        initial_state=state,
        return_state=True,
    )
    dtype = keras.backend.standardize_dtype
    assert dtype(output.dtype) == made.compute_dtype
    for entries in (initial, state):
        assert {name: dtype(x.dtype) for name, x in entries.items()} == {
            "s": "float32",
            "z": "float32",
            "weight": "float32",
            "indices": "int32",
        }
    if layer is RandomFeatureAttention:  # each of two calls, every step
        weight = as_numpy(state["weight"])
        assert_close("weight", weight, np.full((3, HEADS), 12))


def test_states_go_through_functional_models(tmp_path):
    layer = attention()
    x = keras.Input((None, WIDTH))
    shapes = {"s": (HEADS, 32, 4), "z": (HEADS, 32), "weight": (HEADS,)}
    state = {
        name: keras.Input(shape, name=name) for name, shape in shapes.items()
    }
    y, last = layer(
        x, x, use_causal_mask=True, initial_state=state, return_state=True
    )
    assert last["s"].shape == (None, HEADS, 32, 4)
    del last["indices"]  # has no batch axis, which `predict` needs
    model = keras.Model([x, state], [y, last])
    model.save(tmp_path / "model.keras")
    zeros = {
        name: np.zeros((3, *shape), "float32") for name, shape in shapes.items()
    }
    expected = compiled(lambda x: layer(x, x, use_causal_mask=True))(X)
    for each in (model, keras.saving.load_model(tmp_path / "model.keras")):
        start, middle = each.predict([X[:, :4], zeros], verbose=0)
        end, _ = each.predict([X[:, 4:], middle], verbose=0)
        joined = np.concatenate([start, end], axis=1)
        assert_close("outputs", joined, expected)


def test_indices_of_a_state_decide_the_matrices():
    layer = attention()
    layer.build(X.shape)

    def call(x, indices):
        state = {**layer.get_initial_state(3), "indices": indices}
        output, last = layer(
            x, x, initial_state=state, return_state=True, training=False
        )
        return output, last["indices"]

    call = compiled(call)
    first, _ = call(X, np.array([0, 0], "int32"))
    other, indices = call(X, np.array([5, 9], "int32"))
    np.testing.assert_array_equal(indices, [5, 9])
    assert_close("matrices 0", first, compiled(lambda x: layer(x, x))(X))
    assert np.abs(first - other).max() > 1e-3


def test_lora_and_quantization():
    x = keras.Input((6, WIDTH))
    layer = attention(kernel_initializer="orthogonal")
    model = keras.Model(x, layer(x, x))

    def call():  # `predict` would keep the program of the layers before
        return compiled(lambda x: model(x))(X)

    expected = call()
    for dense in (
        layer.query_dense,
        layer.key_dense,
        layer.value_dense,
        layer.output_dense,
    ):
        dense.enable_lora(2)
    assert_close("outputs with LoRA", call(), expected)
    kernel = layer.value_dense.lora_kernel_b
    kernel.assign(as_numpy(kernel) + 0.1)
    adapted = call()
    assert np.abs(adapted - expected).max() > 1e-3

    model.quantize("int8")
    assert layer.query_dense.dtype_policy.quantization_mode == "int8"
    quantized = call()
    error = np.linalg.norm(quantized - adapted) / np.linalg.norm(adapted)
    assert 0 < error < 0.1


def test_sigma_is_what_the_paper_calls_a_small_number_of_parameters():
    """Against 12 d² weights in the matrices of a block."""
    heads, width = 8, 256
    of_block = 12 * width**2
    for layer, expected in (
        (RandomFeatureAttention, 1 / (12 * width)),
        (GatedRandomFeatureAttention, (heads + 1) / (12 * width)),
    ):
        pool = RandomProjectionPool(heads, 2, width // heads, pool_size=1)
        made = layer(heads, width // heads, projection_pool=pool)
        made.build((1, 1, width))
        softmax = keras.layers.MultiHeadAttention(heads, width // heads)
        softmax.build((1, 1, width), (1, 1, width))
        own = sum(np.prod(w.shape) for w in made.trainable_weights)
        more = own - softmax.count_params()
        assert abs(more / of_block - expected) < 0.01 * expected


@pytest.mark.parametrize("layer", LAYERS)
def test_sizes_of_numpy_are_those_of_python(layer):
    sizes = {"num_heads": 2, "key_dim": 4, "value_dim": 5, "output_shape": 7}
    sizes |= {"num_features": 16, "chunk_size": 3, "seed": 1}
    of_numpy = {name: np.int64(size) for name, size in sizes.items()}
    config = layer(**of_numpy).get_config()
    assert sizes.items() <= config.items()
    json.dumps(config)


@pytest.mark.parametrize("shape", [(0, 6, WIDTH), (3, 0, WIDTH)])
@pytest.mark.parametrize("layer", LAYERS)
def test_nothing_to_read_is_no_error(layer, shape):
    made = attention(layer)
    causal = layer is not CrossRandomFeatureAttention
    made.build(shape, shape)
    state = made.get_initial_state(shape[0])
    x = ops.zeros(shape)
    outputs, last = made(
        x, x, use_causal_mask=causal, initial_state=state, return_state=True
    )
    assert tuple(outputs.shape) == shape
    assert_close("state", as_numpy(last), as_numpy(state))


@pytest.mark.parametrize(
    ("length", "policy"),
    [(1, "float32"), (1, "mixed_float16"), (1000, "float32")],
)
@pytest.mark.parametrize("layer", LAYERS)
def test_long_vectors_that_are_not_normalized(layer, length, policy):
    """Estimates of exp(q·k) are then noise, but averages of the values."""
    x = length * np.random.default_rng(0).normal(size=(2, 150, 128))
    made = layer(2, 64, normalize_inputs=False, seed=1, dtype=policy)
    made.build(x.shape, x.shape)
    causal = layer is not CrossRandomFeatureAttention

    def total(x):
        outputs = made(x, x, use_causal_mask=causal, training=True)
        return ops.sum(ops.cast(outputs, "float32")), outputs

    _, outputs, *gradients = compiled(
        differentiated(total, made.trainable_weights)
    )(x.astype("float32"))
    assert_finite("gradients", gradients)
    assert np.abs(outputs).max() < 50 * length


@pytest.mark.parametrize("axes", [(1,), (1, 1)])
def test_one_attention_mask_may_serve_all_rows(axes):
    layer = attention()
    mask = np.arange(6) < 4
    expected = layer(X, X, key_mask=np.tile(mask, (3, 1)))
    actual = layer(X, X, attention_mask=mask.reshape((1, *axes, 6)))
    assert_close("outputs", as_numpy(actual), as_numpy(expected))
