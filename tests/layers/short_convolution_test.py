import keras
import numpy as np
import pytest
from keras import ops

from keras_rfa.layers import ShortConvolution
from keras_rfa.testing import (
    as_numpy,
    assert_close,
    compiled,
    differentiated,
)

X = np.random.default_rng(0).normal(size=(3, 7, 4)).astype("float32")
MASK = np.array([[1] * 7, [1, 1, 1, 1, 0, 0, 0], [0, 1, 1, 0, 1, 0, 1]], bool)
SIZES = (2, 3, 4, 9)  # the last is longer than the sequence


def built(kernel_size=3, **arguments):
    layer = ShortConvolution(kernel_size, **arguments)
    layer.build(X.shape)
    return layer


def reference(layer, x, mask=None):
    """The sum, one step and one weight at a time, in float64."""
    kernel = as_numpy(layer.kernel).astype("float64")
    read = x.astype("float64")
    if mask is not None:
        read = np.where(mask[..., None], read, 0)
    outputs = x.astype("float64")
    for t in range(x.shape[1]):
        for j in range(min(layer.kernel_size, t + 1)):
            outputs[:, t] += kernel[j] * read[:, t - j]
    return outputs


@pytest.mark.parametrize("kernel_size", SIZES)
def test_the_sum_of_a_step_and_those_before_it(kernel_size):
    layer = built(kernel_size)
    actual = compiled(lambda x: layer(x))(X)
    assert_close("outputs", actual, reference(layer, X), 1e-6)


@pytest.mark.parametrize("kernel_size", SIZES)
def test_padding_counts_as_zero(kernel_size):
    layer = built(kernel_size)
    call = compiled(lambda x, mask: layer(x, mask=mask))
    expected = reference(layer, X, MASK)
    padding = np.where(MASK[..., None], X, np.nan).astype("float32")
    for x in (X, padding):
        assert_close("real steps", call(x, MASK)[MASK], expected[MASK], 1e-6)


def test_it_takes_the_mask_and_hands_it_on():
    ids = keras.Input((None,), dtype="int32")
    embedding = keras.layers.Embedding(9, 4, mask_zero=True)
    x = embedding(ids)
    y = ShortConvolution()(x)
    assert y.shape == x.shape
    assert y._keras_mask is not None
    average = keras.layers.GlobalAveragePooling1D()(y)
    model = keras.Model(ids, average)
    long, short = (
        model.predict(np.array([row]), verbose=0)
        for row in ([3, 4, 0, 0], [3, 4])
    )
    assert_close("average", long, short)


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_against_differences(masked):
    layer = built()
    mask = MASK if masked else np.ones_like(MASK)
    weights = np.random.default_rng(1).normal(size=X.shape)

    def total(x):
        y = layer(x, mask=mask)
        return ops.sum(y * ops.cast(weights, y.dtype)), y

    run = compiled(differentiated(total, layer.trainable_variables))
    *_, of_inputs, (of_kernel,) = run(X)

    def change(x):
        return (reference(layer, x, mask) * weights).sum()

    expected = np.zeros_like(X)
    for at in np.ndindex(X.shape):
        step = np.zeros_like(X, "float64")
        step[at] = 0.5  # the sum is linear
        expected[at] = change(X + step) - change(X - step)
    assert_close("of inputs", of_inputs, expected, 1e-5)
    read = np.where(mask[..., None], X, 0).astype("float64")
    shifted = [np.pad(read, [(0, 0), (j, 0), (0, 0)])[:, :7] for j in range(3)]
    expected = [(weights * x).sum((0, 1)) for x in shifted]
    assert_close("of the kernel", of_kernel, expected, 1e-5)


@pytest.mark.parametrize("kernel_size", SIZES)
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_parts_give_the_outputs_of_the_whole(kernel_size, policy):
    layer = built(kernel_size, dtype=policy)

    def read(x, mask):
        state = layer.get_initial_state(x.shape[0])
        outputs = []
        for part in (slice(1), slice(1, 2), slice(2, 6), slice(6, 7)):
            y, state = layer(
                x[:, part],
                mask=mask[:, part],
                initial_state=state,
                return_state=True,
            )
            outputs.append(y)
        whole, last = layer(x, mask=mask, return_state=True)
        return ops.concatenate(outputs, axis=1), state, whole, last

    parts, state, whole, last = compiled(read)(X, MASK)
    assert_close("outputs", parts, whole, 1e-3 if "mixed" in policy else 1e-6)
    np.testing.assert_array_equal(state["inputs"], last["inputs"])
    assert state["inputs"].shape == (3, kernel_size - 1, 4)


@pytest.mark.parametrize("kernel_size", SIZES)
def test_padding_at_the_ends_of_a_ragged_part_is_not_there(kernel_size):
    layer = built(kernel_size)
    whole, last = layer(X[:, :6], return_state=True)
    # Two real steps, three, none and one, each beside padding.
    parts = ([0, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0])
    state, outputs, at = layer.get_initial_state(3), [], 0
    for part in parts:
        mask = np.array([part] * 3, bool)
        x = np.full((3, 5, 4), np.nan, "float32")
        x[mask] = X[:, at : at + sum(part)].reshape(-1, 4)
        at += sum(part)
        y, state = layer(
            x, mask=mask, initial_state=state, return_state=True, ragged=True
        )
        outputs.append(as_numpy(y)[mask].reshape(3, -1, 4))
    assert_close("outputs", np.concatenate(outputs, 1), as_numpy(whole), 1e-6)
    assert_close("state", state["inputs"], as_numpy(last["inputs"]), 0)


def test_states_in_a_functional_model():
    x = keras.Input((None, 4))
    layer = ShortConvolution(3)
    _, state = layer(x, return_state=True)
    y = layer(x, initial_state=state)
    assert y.shape == (None, None, 4)
    actual = keras.Model(x, y).predict(X, verbose=0)
    expected = reference(layer, np.concatenate([X, X], axis=1))[:, 7:]
    assert_close("outputs", actual, expected, 1e-6)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_dtypes(policy):
    layer = ShortConvolution(dtype=policy)
    y, state = layer(ops.ones((1, 5, 2)), return_state=True)
    for tensor in (y, state["inputs"], layer.get_initial_state(1)["inputs"]):
        assert keras.backend.standardize_dtype(tensor.dtype) == policy[6:]
    assert layer.kernel.dtype == "float32"


def test_the_variance_of_the_inputs_is_kept_in_the_sum():
    layer = ShortConvolution(4)
    x = keras.random.normal((2, 400, 600), seed=0)
    added = as_numpy(layer(x)) - as_numpy(x)
    assert 0.9 < added.var() < 1.1


def test_config():
    layer = ShortConvolution(
        5,
        kernel_initializer="zeros",
        kernel_regularizer=keras.regularizers.L2(0.1),
        kernel_constraint="non_neg",
    )
    again = ShortConvolution.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    again.build((None, None, 4))
    np.testing.assert_array_equal(as_numpy(again(X)), X)


def last_of(tensor):
    return {"inputs": tensor}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": MASK[:, :5]}, r"mask.shape=\(3, 5\)"),
        ({"mask": MASK[0]}, r"mask.shape=\(7,\)"),
        ({"mask": MASK[:, :1]}, r"mask.shape=\(3, 1\)"),
        ({"initial_state": {}}, r"keys \['inputs'\]"),
        ({"initial_state": X}, r"must be a dict"),
        ({"initial_state": last_of(X)}, r"steps=2.*shape=\(3, 7, 4\)"),
        ({"initial_state": last_of(X[:, :1])}, r"steps=2.*\(3, 1, 4\)"),
        ({"initial_state": last_of(X[:1, :2])}, r"batch=3.*\(1, 2, 4\)"),
        ({"initial_state": last_of(X[:, :2, :1])}, r"width=4.*\(3, 2, 1\)"),
        ({"inputs": X[..., :1]}, r"width=4.*inputs.shape=\(3, 7, 1\)"),
    ],
)
@pytest.mark.parametrize("symbolic", [False, True])
def test_what_would_broadcast_is_refused(arguments, message, symbolic):
    arguments = {"inputs": X, **arguments}
    if symbolic:
        arguments = keras.tree.map_structure(
            lambda x: keras.KerasTensor(x.shape, x.dtype.name), arguments
        )
    with pytest.raises(ValueError, match=message):
        built()(**arguments)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float16"])
def test_inputs_of_any_dtype_are_read_in_that_of_the_layer(dtype, policy):
    layer = built(dtype=policy, autocast=False)
    x = (10 * np.abs(X)).astype(dtype)
    state = {"inputs": ops.cast(np.full((3, 2, 4), 0.5), layer.compute_dtype)}
    call = compiled(lambda x: layer(x, initial_state=state, return_state=True))
    outputs, _ = call(x)
    joined = np.concatenate([np.full((3, 2, 4), 0.5), x], axis=1)
    expected = reference(layer, joined)[:, 2:]
    tolerance = 1e-6 if policy == "float32" else 0.05
    assert_close("outputs", outputs.astype("float32"), expected, tolerance)
    for tensor in layer(ops.convert_to_tensor(x), return_state=True):
        tensor = tensor["inputs"] if isinstance(tensor, dict) else tensor
        found = keras.backend.standardize_dtype(tensor.dtype)
        assert found == layer.compute_dtype


def test_a_loop_carries_the_state():
    layer = built()
    x = np.concatenate([X, X[:, :1]], axis=1)

    def read(x):
        def step(i, state, total):
            part = ops.slice(x, (0, 2 * i, 0), (3, 2, 4))
            y, state = layer(part, initial_state=state, return_state=True)
            return i + 1, state, total + y

        state = layer.get_initial_state(3)
        zeros = ops.zeros((3, 2, 4))
        return ops.while_loop(lambda i, *_: i < 4, step, (0, state, zeros))[2]

    expected = sum(np.split(reference(layer, x), 4, axis=1))
    assert_close("sum of the parts", compiled(read)(x), expected, 1e-5)


def bytes_kept(tensor):
    if keras.backend.backend() == "torch":
        return tensor.untyped_storage().nbytes()
    return ops.convert_to_numpy(tensor).nbytes  # no views


def test_a_state_keeps_no_other_steps_in_memory():
    _, state = built()(ops.convert_to_tensor(X), return_state=True)
    assert bytes_kept(state["inputs"]) == 3 * 2 * 4 * 4


def test_errors():
    with pytest.raises(ValueError, match=r"kernel_size=1"):
        ShortConvolution(1)
    with pytest.raises(ValueError, match=r"inputs.shape=\(3, 4\)"):
        ShortConvolution()(np.ones((3, 4)))
    with pytest.raises(ValueError, match="'short' must be built"):
        ShortConvolution(name="short").get_initial_state(2)
