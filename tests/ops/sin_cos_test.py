"""Sine and cosine by polynomials, against NumPy in float64."""

import numpy as np
import pytest

from keras_rfa.ops.sin_cos import sin_cos
from keras_rfa.testing.backends import compiled

ANGLES = np.concatenate(
    [
        np.linspace(-7, 7, 20001),
        np.arange(-64, 65) * np.pi / 2,  # where one of them is 0
        np.geomspace(1e-30, 1e3, 1001),
        -np.geomspace(1e-30, 1e3, 1001),
    ]
).astype("float32")


def test_each_value():
    sine, cosine = compiled(sin_cos)(ANGLES)
    exact = ANGLES.astype("float64")
    np.testing.assert_allclose(sine, np.sin(exact), rtol=0, atol=2e-7)
    np.testing.assert_allclose(cosine, np.cos(exact), rtol=0, atol=2e-7)


def test_small_angles_keep_their_digits():
    angles = np.geomspace(1e-30, 1, 1000).astype("float32")
    sine, _ = compiled(sin_cos)(angles)
    np.testing.assert_allclose(sine, np.sin(angles.astype("float64")), 3e-7)


@pytest.mark.parametrize("size", [1e4, 1e6, 1e9, 1e30, 3e38])
def test_angles_of_any_size_are_on_the_circle(size):
    angles = (size * np.linspace(-1, 1, 1001)).astype("float32")
    sine, cosine = compiled(sin_cos)(angles)
    assert np.max(np.abs(sine)) <= 1 + 1e-6
    np.testing.assert_allclose(sine**2 + cosine**2, 1, atol=1e-3)
    # As near as a rounding of the angle, or of the products that reduce it.
    bound = 2e-7 + 4 * np.spacing(np.abs(angles)).astype("float64")
    error = np.abs(sine - np.sin(angles.astype("float64")))
    assert np.all(error <= bound)
