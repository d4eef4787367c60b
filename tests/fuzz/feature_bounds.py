"""Feature maps and their gradients in float64, and what float32 may lose.

As in `attention_bounds` sums are taken of magnitudes: an angle `W y` may be
off by `γ Σ |W| |y|`, a sine by what its angle is off and 4 u (the library
promises 2e-7), an exponential by the error of its exponent times itself.
"""

from typing import Any

import numpy as np
from bounded import TINY, Bounded, U, gamma, inflated

Array = Any


class Features:
    """The features of `(b, t, h, d)` and, of the layers, a weight.

    Args:
        x: array of shape `(b, t, h, d)`.
        projection: array of shape `(h, D, d)` or `None`.
        scale: array of shape `(h, d)` or `None`.
        kind: string.
        normalize: bool.
        factored: bool. Whether the gaussian features leave out their factor.
    """

    def __init__(
        self,
        x: Array,
        projection: Array | None,
        scale: Array | None,
        kind: str,
        normalize: bool,
        factored: bool = False,
    ) -> None:
        self.x = np.asarray(x, "float64")
        self.kind, width = kind, self.x.shape[-1]
        self.gamma = gamma(width + 10)
        self.length = np.linalg.norm(self.x, axis=-1, keepdims=True)
        self.unit = kind in ("gaussian", "arccos") and normalize
        self.base = self.x * (width**-0.25 if kind == "positive" else 1)
        if self.unit:
            length = np.where(self.length > 0, self.length, 1)
            self.base = self.x / length
        self.scale = np.ones(self.x.shape[2:]) if scale is None else scale
        self.y = self.base * self.scale
        if kind == "elu":
            self.features = self._elu()
            return
        self.projection = np.asarray(projection, "float64")
        self.share = self.projection.shape[1] ** -0.5
        self.angle = Bounded(
            np.einsum("bthd,hfd->bthf", self.y, self.projection),
            (self.gamma + U)
            * np.einsum("bthd,hfd->bthf", np.abs(self.y), np.abs(projection))
            + TINY,
        )
        self.half_square = (self.y**2).sum(-1, keepdims=True) / 2
        self.factor = Bounded(np.ones_like(self.half_square), 0.0)
        if kind == "gaussian" and not normalize and not factored:
            self.factor = self._exp(self.half_square, 0.0)
        self.features = getattr(self, f"_{kind}")()

    def log_weight(self) -> Bounded:
        """Returns what a layer weighs keys with, `(b, t, h)`."""
        value = np.exp(np.minimum(self.half_square[..., 0], 30))
        error = value * np.expm1(3 * self.gamma * 30)
        return Bounded(value, error)

    def _exp(self, exponent: Array, error: Array) -> Bounded:
        value = np.exp(exponent)
        error = error + 3 * self.gamma * self.half_square
        error = error + U * np.abs(exponent) + 3 * U
        return Bounded(value, value * np.expm1(np.minimum(error, 80)) + TINY)

    def _sine_error(self) -> Array:
        return np.minimum(self.angle.error, 2) + 4 * U

    def _gaussian(self) -> Bounded:
        angle, error = self.angle.value, self._sine_error()
        plain = np.concatenate([np.sin(angle), np.cos(angle)], -1)
        error = np.concatenate([error, error], -1)
        value = plain * self.factor.value * self.share
        high = (np.abs(plain) + error) * inflated(self.factor) * self.share
        return Bounded(value, high * (1 + 4 * U) - np.abs(value))

    def _arccos(self) -> Bounded:
        value = np.maximum(self.angle.value, 0) * self.share
        error = self.angle.error * self.share * (1 + 4 * U)
        return Bounded(value, error + 4 * U * value)

    def _positive(self) -> Bounded:
        exponent = self.angle.value - self.half_square
        features = self._exp(exponent, self.angle.error)
        error = features.error * (1 + 4 * U) + 4 * U * features.value
        return Bounded(features.value * self.share, error * self.share)

    def _elu(self) -> Bounded:
        below = np.exp(np.minimum(self.x, 0))
        value = np.where(self.x > 0, self.x + 1, below)
        error = value * U * (4 + np.abs(np.minimum(self.x, 0)))
        return Bounded(value, error + TINY)

    def gradients(self, given: Array) -> dict[str, Bounded]:
        """Returns the gradients by `x` and by the scale.

        Args:
            given: array of shape `(b, t, h, m)`, the gradient by features.
        """
        if self.kind == "elu":
            slope = np.exp(np.minimum(self.x, 0))
            error = np.abs(given) * slope * U * (6 + np.abs(self.x)) + TINY
            return {"x": Bounded(given * slope, error)}
        by_angle, by_square = getattr(self, f"_{self.kind}_gradient")(given)
        w, y = self.projection, self.y
        value = np.einsum("bthf,hfd->bthd", by_angle.value, w)
        value = value + y * by_square.value
        plain, high = (
            np.einsum("bthf,hfd->bthd", a, np.abs(w)) + np.abs(y) * s
            for a, s in (
                (np.abs(by_angle.value), np.abs(by_square.value)),
                (inflated(by_angle), inflated(by_square)),
            )
        )
        more = 1 + gamma(w.shape[1] + w.shape[2] + 16)
        by_y = Bounded(value, high * more - plain + TINY)
        base = np.abs(self.base)
        by_scale = Bounded(
            (by_y.value * self.base).sum((0, 1)),
            (inflated(by_y) * base).sum((0, 1))
            * (1 + gamma(np.prod(y.shape[:2]) + 16))
            - (np.abs(by_y.value) * base).sum((0, 1)),
        )
        size = np.abs(self.scale)
        by_base = Bounded(by_y.value * self.scale, by_y.error * size)
        return {"x": self._by_x(by_base), "scale": by_scale}

    def _by_x(self, by_base: Bounded) -> Bounded:
        if not self.unit:
            share = self.x.shape[-1] ** -0.25 if self.kind == "positive" else 1
            error = by_base.error + 6 * U * np.abs(by_base.value)
            return Bounded(by_base.value * share, error * share + TINY)
        nothing = self.length == 0
        length = np.where(nothing, 1, self.length)
        along = (self.base * by_base.value).sum(-1, keepdims=True)
        value = (by_base.value - self.base * along) / length
        base = np.abs(self.base)
        plain, high = (
            x + base * (base * x).sum(-1, keepdims=True)
            for x in (np.abs(by_base.value), inflated(by_base))
        )
        error = (high * (1 + 3 * self.gamma) - plain + TINY) / length
        # The zero vector has no direction: anything finite.
        return Bounded(value, np.where(nothing, 1e30, error))

    def _gaussian_gradient(self, given: Array) -> tuple[Bounded, Bounded]:
        sines, cosines = np.split(given, 2, axis=-1)
        angle = self.angle.value
        share = self.share * self.factor.value
        value = np.cos(angle) * sines - np.sin(angle) * cosines
        size = np.abs(sines) + np.abs(cosines)
        error = share * size * (self._sine_error() + 4 * U)
        error = error + self.share * size * self.factor.error
        by_angle = Bounded(share * value, error)
        if not np.any(self.factor.error):
            return by_angle, Bounded(0 * self.factor.value, 0.0)
        value = (given * self.features.value).sum(-1, keepdims=True)
        plain, high = (
            (np.abs(given) * x).sum(-1, keepdims=True)
            for x in (np.abs(self.features.value), inflated(self.features))
        )
        more = 1 + gamma(given.shape[-1] + 8)
        return by_angle, Bounded(value, high * more - plain)

    def _arccos_gradient(self, given: Array) -> tuple[Bounded, Bounded]:
        slope = self.angle.value > 0
        unsure = np.abs(self.angle.value) <= self.angle.error
        size = self.share * np.abs(given)
        by_angle = Bounded(
            self.share * given * slope, np.where(unsure, size, 4 * U * size)
        )
        return by_angle, Bounded(0 * self.half_square, 0.0)

    def _positive_gradient(self, given: Array) -> tuple[Bounded, Bounded]:
        value = given * self.features.value
        error = np.abs(given) * self.features.error + 4 * U * np.abs(value)
        size = np.abs(value).sum(-1, keepdims=True)
        error_of_sum = error.sum(-1, keepdims=True)
        error_of_sum = error_of_sum + gamma(value.shape[-1]) * size
        total = -value.sum(-1, keepdims=True)
        return Bounded(value, error), Bounded(total, error_of_sum)
