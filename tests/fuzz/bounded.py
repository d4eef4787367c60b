"""A float64 array, and how far float32 may be from it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any

UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
LARGEST = {"float32": 3.4e38, "bfloat16": 3.38e38, "float16": 65504.0}
SMALLEST = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-24}
U = UNIT["float32"]
# Below 2**-126 a backend may flush to zero, in each of several products.
TINY = 2.0**-123


def gamma(roundings: float) -> float:
    """Bounds the relative error of so many roundings."""
    return min(roundings, 7 * roundings**0.5) * U


@dataclass
class Bounded:
    """A float64 array and the most by which a correct float32 differs."""

    value: Array
    error: Array

    def rounded(self, dtype: str) -> "Bounded":
        """Adds the error of storing it."""
        error = self.error * (1 + UNIT[dtype]) + SMALLEST[dtype]
        return Bounded(self.value, error + UNIT[dtype] * np.abs(self.value))


def inflated(x: Bounded) -> Array:
    """Returns the largest magnitudes."""
    return np.abs(x.value) + x.error
