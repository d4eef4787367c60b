import keras
import numpy as np
import pytest
from keras import ops

from keras_rfa.layers import MaskedAveragePooling
from keras_rfa.testing import assert_close, compiled, differentiated

X = np.random.default_rng(0).normal(size=(3, 5, 4)).astype("float32")
MASK = np.array([[1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]], bool)


def test_the_average_of_real_steps():
    layer = MaskedAveragePooling()
    actual = compiled(lambda x, mask: layer(x, mask=mask))(X, MASK)
    expected = [X[0].mean(0), X[1][[1, 3]].mean(0), np.zeros(4)]
    assert_close("average", actual, expected, 1e-6)
    plain = compiled(lambda x: layer(x))(X)
    assert_close("without a mask", plain, X.mean(1), 1e-6)


def test_padding_may_hold_anything():
    padding = np.where(MASK[..., None], X, np.inf).astype("float32")
    call = compiled(lambda x, mask: MaskedAveragePooling()(x, mask=mask))
    np.testing.assert_array_equal(call(padding, MASK), call(X, MASK))


def test_gradients():
    layer = MaskedAveragePooling()

    def total(x, mask):
        y = layer(x, mask=mask)
        return ops.sum(y), y

    *_, gradient, _ = compiled(differentiated(total, []))(X, MASK)
    expected = MASK / np.maximum(MASK.sum(1, keepdims=True), 1)
    assert_close("gradient", gradient, expected[..., None] * np.ones(4))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_sums_are_float32(policy):
    layer = MaskedAveragePooling(dtype=policy)
    average = layer(ops.ones((1, 70000, 2)))
    assert keras.backend.standardize_dtype(average.dtype) == policy[6:]
    average = ops.convert_to_numpy(ops.cast(average, "float32"))
    np.testing.assert_array_equal(average, 1)


def test_it_takes_the_mask_and_hands_none_on():
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 4, mask_zero=True)(ids)
    y = MaskedAveragePooling()(x)
    assert y.shape == (None, 4)
    assert getattr(y, "_keras_mask", None) is None
    model = keras.Model(ids, y)
    long, short = (
        model.predict(np.array([row]), verbose=0)
        for row in ([3, 4, 0, 0], [3, 4])
    )
    assert_close("average", long, short)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_parts_give_the_average_of_the_whole(policy):
    layer = MaskedAveragePooling(dtype=policy)
    embed = keras.layers.Masking()  # a step of zeros is padding
    x = np.where(MASK[..., None], X, 0)
    layer.build(x.shape)

    def read(x):
        x = embed(x)
        state = layer.get_initial_state(x.shape[0])
        for part in (slice(2), slice(2, 3), slice(3, 5)):
            y = embed(x[:, part])
            y, state = layer(y, initial_state=state, return_state=True)
        return layer(x), y, state

    whole, parts, state = compiled(read)(x)
    assert_close("average", parts, whole, 1e-6)
    np.testing.assert_array_equal(state["count"][:, 0], MASK.sum(1))
    layer = MaskedAveragePooling(dtype=policy)
    _, state = layer(ops.convert_to_tensor(x), return_state=True)
    for tensor in state.values():
        assert keras.backend.standardize_dtype(tensor.dtype) == "float32"


def test_states_in_a_functional_model():
    x = keras.Input((5, 4))
    layer = MaskedAveragePooling()
    _, state = layer(x, return_state=True)
    model = keras.Model(x, layer(x, initial_state=state))
    assert_close("average", model.predict(X, verbose=0), X.mean(1), 1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": MASK[:, :1]}, r"mask.shape=\(3, 1\)"),
        ({"initial_state": {"sum": X[:, 0]}}, r"keys \['count', 'sum'\]"),
        (
            {"initial_state": {"sum": X[:1, 0], "count": X[:, 0, :1]}},
            r"batch=3, width=4.*\(1, 4\)",
        ),
        ({"inputs": X[..., :1]}, r"width=4.*inputs.shape=\(3, 5, 1\)"),
    ],
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_what_would_broadcast_is_refused(arguments, message, symbolic):
    layer = MaskedAveragePooling()
    layer.build(X.shape)
    arguments = {"inputs": X, **arguments}
    if symbolic:
        arguments = keras.tree.map_structure(
            lambda x: keras.KerasTensor(x.shape, x.dtype.name), arguments
        )
    with pytest.raises(ValueError, match=message):
        layer(**arguments)


def test_errors():
    with pytest.raises(ValueError, match=r"inputs.shape=\(3, 4\)"):
        MaskedAveragePooling()(np.ones((3, 4)))
    with pytest.raises(ValueError, match="'pooling' must be built"):
        MaskedAveragePooling(name="pooling").get_initial_state(2)
