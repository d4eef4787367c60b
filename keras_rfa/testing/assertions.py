"""Comparisons that say what was compared, and the figures."""

import math
from typing import Any

import keras
import numpy as np

Array = Any


def assert_close(
    what: str, actual: Any, expected: Any, tolerance: float = 1e-4
) -> None:
    """Raises unless arrays differ by a share of the largest |value| only."""
    if isinstance(expected, dict):
        for name in expected:
            assert_close(
                f"{what}, {name!r}", actual[name], expected[name], tolerance
            )
        return
    if isinstance(expected, (tuple, list)):
        for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
            assert_close(f"{what}, [{i}]", a, b, tolerance)
        return
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        raise AssertionError(
            f"{what}: the shape is {actual.shape}, not {expected.shape}."
        )
    if not expected.size:
        return
    error = np.abs(actual.astype("float64") - expected).max()
    allowed = tolerance * max(1.0, float(np.abs(expected).max()))
    if not error <= allowed:  # NaN is an error too
        raise AssertionError(
            f"{what}: the largest difference is {error:.2e}. "
            f"Allowed: {allowed:.2e}"
        )


def assert_equal(what: str, actual: Array, expected: Any) -> None:
    """Raises unless arrays are equal to the last bit."""
    different = int(np.sum(actual != expected))
    if different:
        raise AssertionError(
            f"{what}: {different} of {np.size(actual)} values are different."
        )


def assert_finite(what: str, values: Any) -> None:
    """Raises if a number in a structure of arrays is infinite or NaN."""
    for value in keras.tree.flatten(values):
        bad = np.size(value) - int(np.sum(np.isfinite(value)))
        if bad:
            raise AssertionError(
                f"{what}: {bad} of {math.prod(np.shape(value))} values are "
                "not finite."
            )
