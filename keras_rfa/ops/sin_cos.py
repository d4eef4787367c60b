"""Sine and cosine by polynomials, which XLA vectorises.

On processors it calls a function of the C library for each sine and each
cosine, 9 ns an element, which was half the time of a layer. A short polynomial
takes a tenth of that. Without a compiler each of its steps would read and write
memory, so torch keeps its own functions.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_rfa.ops.written_gradient import Tensors, with_gradient

Tensor = Any

# A quarter turn in three parts: the first two have so few digits that their
# products with the whole numbers that occur are exact.
QUARTER_TURN = (1.5703125, 4.837512969970703e-4, 7.549789948768648e-8)
# In powers of the square of an angle, of least error within an eighth of a
# turn: (sin x - x) / x³ and (cos x - 1 + x²/2) / x⁴.
SINE = (-0.16666651, 0.00833198, -0.00019495)
COSINE = (0.0416666468, -0.00138873663, 2.44383072e-05)


def sin_cos(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the sine and the cosine of each angle.

    Their errors are below 2e-7, and for angles above 1e4 below that of a
    rounding of the angle.

    Args:
        angle: float32 tensor of any shape, in radians.

    Returns:
        Two tensors like `angle`.
    """
    if keras.backend.backend() == "torch":
        return ops.sin(angle), ops.cos(angle)
    return with_gradient(_sin_cos, _gradient)({"angle": angle})


def _sin_cos(x: Tensors) -> tuple[Tensor, Tensor]:
    angle = x["angle"]
    quarters = ops.round(angle * (2 / math.pi))
    for part in QUARTER_TURN:
        angle = angle - quarters * part
    # An angle whose last digit is a turn leaves any remainder: both functions
    # are then those of the same wrong angle.
    angle = ops.clip(angle, -1.0, 1.0)
    square = ops.square(angle)
    sine = angle + angle * square * _polynomial(square, SINE)
    cosine = 1 - square / 2 + ops.square(square) * _polynomial(square, COSINE)

    # After a quarter of a turn they change places, after a half their signs.
    quarters = quarters - 4 * ops.floor(quarters / 4)  # 0, 1, 2 or 3
    is_odd = ops.logical_or(quarters == 1, quarters == 3)
    of_sine = ops.where(quarters >= 2, -1.0, 1.0)
    of_cosine = ops.where(ops.abs(quarters - 1.5) < 1, -1.0, 1.0)
    return (
        of_sine * ops.where(is_odd, cosine, sine),
        of_cosine * ops.where(is_odd, sine, cosine),
    )


def _polynomial(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    total = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient
    return total


def _gradient(x: Tensors, upstream: tuple[Tensor, ...]) -> Tensors:
    sine, cosine = _sin_cos(x)
    of_sine, of_cosine = upstream
    return {"angle": of_sine * cosine - of_cosine * sine}
