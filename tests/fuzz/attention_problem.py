"""The inputs of linear attention in float64, and the errors of decays."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from bounded import TINY, Bounded, U, gamma

Array = Any

# The library keeps a gate to within exp(-20) = 2e-9, u/29, of itself.
LOG_SHUT = -20.0
# It lets at least exp(-40) = 4e-18 of what enters in.
LOG_OPEN = -40.0
# States of chunks are combined in blocks of at most 32 chunks.
BLOCK_SIZE = 32


@dataclass
class Problem:
    """The inputs of one call of `linear_attention`, in float64.

    `q_error` and `k_error` say how far features may be from those given.
    """

    q: Array  # (b, t, h, m)
    k: Array  # (b, s, h, m)
    v: Array  # (b, s, h, e)
    causal: bool
    epsilon: float
    chunk_size: int
    gate_logits: Array | None = None
    key_mask: Array | None = None
    key_weight: Array | None = None
    state: dict[str, Array] | None = None
    q_error: Array = 0.0
    k_error: Array = 0.0
    weight_error: Array | None = None

    def __post_init__(self) -> None:
        b, s, h, m = self.k.shape
        counts = np.ones((b, s), bool)
        if self.key_mask is not None:
            counts = np.asarray(self.key_mask, bool)
        self.counts = np.repeat(counts[:, None], h, axis=1)  # (b, h, s)
        self.gated = self.gate_logits is not None
        self.log_keep = self.log_enter = np.zeros((b, h, s))
        if self.gated:
            logits = np.moveaxis(self.gate_logits, 1, 2)
            self.logits = np.where(self.counts, logits, 0)
            self.log_keep = -np.logaddexp(0, -self.logits)
            self.log_keep = np.where(self.counts, self.log_keep, 0)
            self.log_enter = -np.logaddexp(0, self.logits)
        self.entering = np.where(self.counts, np.exp(self.log_enter), 0)
        self.weight = np.ones((b, h, s))
        if self.key_weight is not None:
            self.weight = np.moveaxis(self.key_weight, 1, 2)
        if self.weight_error is None:
            self.weight_error = U * self.weight
        else:
            self.weight_error = np.moveaxis(self.weight_error, 1, 2)
        real = np.moveaxis(self.counts, 1, 2)[..., None]
        self.k, self.v = (np.where(real, x, 0) for x in (self.k, self.v))
        self.k_error = self.k_error * np.where(real, 1.0, 0)
        if self.state is None:
            shapes = {"s": (m, self.v.shape[-1]), "z": (m,), "weight": ()}
            self.state = {
                name: np.zeros((b, h, *shape)) for name, shape in shapes.items()
            }
        self.gamma = gamma(m + s + 12)
        self.decay_error = self._decay_error()

    def _decay_error(self) -> Array:
        """Returns the relative errors of decays, `(b, h)`.

        A decay is the exponential of a difference of two sums of at most a
        chunk of logarithms, so its relative error is the absolute one of
        these sums; between chunks they are sums over a block of chunks.
        """
        b, h, s = self.log_keep.shape
        if not self.gated or not s:
            return np.zeros((b, h))
        size = min(s, self.chunk_size)
        log_keep = np.abs(np.maximum(self.log_keep, LOG_SHUT))
        total = np.cumsum(np.pad(log_keep, [(0, 0), (0, 0), (1, 0)]), -1)
        largest = (total[..., size:] - total[..., :-size]).max(-1)
        block = min(s, size * BLOCK_SIZE)
        of_block = (total[..., block:] - total[..., :-block]).max(-1)
        depth = gamma(size + BLOCK_SIZE)
        return np.expm1(2 * depth * largest + 4 * U * of_block)

    def decays(self, rows: Array, log_keep: Array) -> tuple[Array, Array]:
        """Returns what gates leave at some steps, without what enters.

        Args:
            rows: int array of steps.
            log_keep: array of shape `(b, h, s)`.

        Returns:
            That of each key `(b, h, rows, s)`, and of the first state
            `(b, h, rows)`.
        """
        b, h, s = log_keep.shape
        if not self.causal and not self.gated:
            return np.ones((b, h, len(rows), s)), np.ones((b, h, len(rows)))
        up_to = np.cumsum(log_keep, axis=-1)
        before = up_to - log_keep
        forward = up_to[..., rows, None] - up_to[..., None, :]
        backward = before[..., None, :] - before[..., rows, None]
        later = rows[:, None] >= np.arange(s)
        if self.causal:
            backward = np.full_like(forward, -np.inf)
        logarithm = np.minimum(np.where(later, forward, backward), 0)
        return np.exp(logarithm), np.exp(up_to[..., rows])

    def weights(self, rows: Array) -> tuple[Bounded, Bounded]:
        """Returns the decays times what enters, and those of the state.

        What enters is meant without `key_weight`.
        """
        decay, first = self.decays(rows, self.log_keep)
        other_decay, other_first = decay, first
        if self.gated:
            clamped = np.maximum(self.log_keep, LOG_SHUT)
            other_decay, other_first = self.decays(rows, clamped)
        error = self.decay_error[..., None]
        own = rows[:, None] == np.arange(decay.shape[-1])
        enters = self.entering[..., None, :]
        enter_error = U * (5 + 2 * np.abs(self.log_enter))
        enter_error = enter_error[..., None, :]
        # It is in both directions, and then subtracted once.
        two_sided = self.gated and not self.causal
        own_error = 3 * self.gamma if two_sided else 0
        relative = np.where(own, own_error, error[..., None]) + enter_error
        least = np.where(self.counts, np.exp(LOG_OPEN), 0)
        more = np.maximum(least - self.entering, 0)[..., None, :]
        lost = other_decay - decay + other_decay * relative
        return (
            Bounded(
                decay * enters, (enters + more) * lost + more * decay + TINY
            ),
            Bounded(first, other_first - first + other_first * error + TINY),
        )

    def sees(self, rows: Array) -> Array:
        """Returns where a query sees any key, `(b, h, rows)`."""
        seen = (self.counts & (self.weight > 0))[..., None, :]
        if self.causal:
            seen = seen & (rows[:, None] >= np.arange(seen.shape[-1]))
        return seen.any(-1) | (self.state["weight"][..., None] > 0)
