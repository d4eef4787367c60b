import warnings

import keras
import numpy as np
import pytest
from keras import ops

from keras_rfa.layers import SinusoidalPositions
from keras_rfa.testing import as_numpy, assert_close, compiled


def waves(positions, width, wavelength=10000.0):
    exponents = np.arange(0, width, 2) / width
    angles = positions[:, None] * wavelength**-exponents
    waves = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    return waves[:, :width]


@pytest.mark.parametrize("width", [1, 6, 7])
@pytest.mark.parametrize("wavelength", [10000.0, 50.0])
def test_sines_then_cosines(width, wavelength):
    layer = SinusoidalPositions(max_wavelength=wavelength)
    x = np.random.default_rng(0).normal(size=(2, 40, width))
    actual = compiled(lambda x: layer(x))(x.astype("float32"))
    expected = x + waves(np.arange(40), width, wavelength)
    assert_close("outputs", actual, expected, 1e-5)


def test_a_sequence_may_begin_anywhere():
    layer = SinusoidalPositions()
    call = compiled(lambda x, start: layer(x, start_index=start))
    x = np.zeros((1, 5, 6), "float32")
    actual = call(x, np.asarray(1000, "int32"))[0]
    assert_close("outputs", actual, waves(np.arange(1000, 1005), 6))
    x = np.zeros((2, 5, 6), "float32")
    actual = call(x, np.asarray([7, -2], "int32"))
    for row, start in zip(actual, (7, -2), strict=True):
        assert_close("rows", row, waves(np.arange(start, start + 5), 6))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_positions_are_counted_in_float32(policy):
    layer = SinusoidalPositions(dtype=policy)
    outputs = layer(ops.zeros((1, 5000, 6)))
    assert keras.backend.standardize_dtype(outputs.dtype) == policy[6:]
    expected = waves(np.arange(5000), 6)
    assert_close("outputs", as_numpy(outputs)[0], expected, 5e-3)


def test_config_and_mask():
    layer = SinusoidalPositions(max_wavelength=7.0)
    config = layer.get_config()
    assert SinusoidalPositions.from_config(config).max_wavelength == 7
    assert layer.supports_masking
    assert layer.compute_output_shape((None, None, 6)) == (None, None, 6)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "long"])
def test_errors(value):
    with pytest.raises(ValueError, match="Received: max_wavelength="):
        SinusoidalPositions(value)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_first_position_may_be_a_tensor(dtype):
    layer, x = SinusoidalPositions(), ops.zeros((1, 6, 4))
    start = ops.convert_to_tensor(np.array(4, dtype))
    expected = as_numpy(layer(x))[:, 4:]
    assert_close("outputs", as_numpy(layer(x[:, 4:], start)), expected)


def test_no_tensor_passes_through_numpy():
    """On a GPU torch refuses what it only warns of here."""
    layer = SinusoidalPositions()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(ops.zeros((1, 6, 4)))
