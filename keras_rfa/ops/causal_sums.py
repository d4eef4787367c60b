"""Causal sums by matrix products alone.

Inside a chunk of `c` steps the quadratic form is cheaper than a loop; between
chunks the states follow in closed form, as a product with a small matrix of
decays. There is no loop over time and no scan, so that every backend compiles
and differentiates it.
"""

import math
from typing import Any, NamedTuple

from keras import ops

from keras_rfa.ops.state import State, zero_state

Tensor = Any

# Chunks whose states are combined by one matrix product.
BLOCK_SIZE = 32
# Stands for log 0: chosen before `exp`, never multiplied after it.
LOG_ZERO = -1e9
# What is left of a state by such a gate is lost beside what enters, and the
# sum of larger logarithms would cost the digits of those of open gates.
LOG_SHUT = -20.0


def log_gates(gate_logits: Tensor) -> Tensor:
    """Returns the logarithms of gates, of those that are shut `LOG_SHUT`."""
    return ops.maximum(ops.log_sigmoid(gate_logits), LOG_SHUT)


class Sums(NamedTuple):
    """What the queries read from the states they see."""

    numerator: Tensor  # φ(q_t)ᵀ S_t  (b, t, h, e)
    denominator: Tensor  # φ(q_t)·z_t  (b, t, h)
    weight: Tensor  # c_t  (b, t, h)

    def divide(self, epsilon: float) -> Tensor:
        """Returns the outputs, `(b, t, h, e)`."""
        floored = ops.maximum(self.denominator, epsilon * self.weight)
        floored = ops.where(floored > 0, floored, 1)  # no key: 0 / 1
        return self.numerator / floored[..., None]


def causal_sums(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weight: Tensor,
    log_gate: Tensor | None,
    initial: State | None,
    chunk_size: int,
) -> tuple[Sums, State]:
    """Computes causal sums chunk by chunk; see the head of this file."""
    batch, steps, heads, _ = ops.shape(q)
    chunk_size = _even_chunk(steps, chunk_size)
    # In this form JAX can compare sizes that are not known yet.
    chunks = (steps + chunk_size - 1) // chunk_size
    padding = chunks * chunk_size - steps

    def split(x: Tensor) -> Tensor:  # (b, t, h, ...) -> (b, h, n, c, ...)
        rest = [[0, 0]] * (len(x.shape) - 2)
        x = ops.pad(x, [[0, 0], [0, padding], *rest])
        x = ops.reshape(x, (batch, chunks, chunk_size, heads, *x.shape[3:]))
        return ops.transpose(x, (0, 3, 1, 2, *range(4, len(x.shape))))

    def join(x: Tensor) -> Tensor:  # (b, h, n, c, ...) -> (b, t, h, ...)
        x = ops.transpose(x, (0, 2, 3, 1, *range(4, len(x.shape))))
        shape = (batch, chunks * chunk_size, heads, *x.shape[4:])
        return ops.reshape(x, shape)[:, :steps]

    q, k, v, weight = split(q), split(k), split(v), split(weight)
    log_gate = None if log_gate is None else split(log_gate)
    decay = _Decay(log_gate, chunk_size, q.dtype)

    # Inside the chunk: (φ(q_i)·φ(k_j)) g_{j+1} ... g_i for j <= i.
    scores = ops.matmul(q, ops.swapaxes(k, -1, -2))  # (b, h, n, c, c)
    scores = scores * decay.between
    numerator = ops.matmul(scores, v)
    denominator = ops.sum(scores, axis=-1)

    # What each chunk leaves to the next, and the states between chunks.
    k = decay.until_end(k)
    left = {
        "s": ops.matmul(ops.swapaxes(k, -1, -2), v),  # (b, h, n, m, e)
        "z": ops.sum(k, axis=-2),
        "weight": ops.sum(decay.until_end(weight), axis=-1),
    }
    if initial is None:
        initial = zero_state(batch, heads, k.shape[-1], v.shape[-1])
    levels = _levels(decay.of_chunks, chunks + 1, q.dtype)
    before, last = {}, {}
    for name in left:
        before[name], last[name] = _carry(initial[name], left[name], levels)

    # From before the chunk: g_1 ... g_i φ(q_i)ᵀ S.
    q = decay.from_start(q)
    numerator = numerator + ops.matmul(q, before["s"])
    denominator = denominator + ops.einsum("bhncm,bhnm->bhnc", q, before["z"])
    seen = decay.from_start(
        before["weight"][..., None] + ops.zeros_like(weight)
    )
    seen = seen + ops.sum(decay.between * weight[..., None, :], axis=-1)
    return Sums(join(numerator), join(denominator), join(seen)), last


def _even_chunk(steps: Any, chunk_size: int) -> int:
    """Returns the size of equal chunks that cover the steps."""
    if not isinstance(steps, int):
        return chunk_size  # not known when the graph is built
    if steps <= chunk_size:
        return max(steps, 1)
    chunks = -(-steps // chunk_size)
    return min(chunk_size, 8 * -(-steps // (8 * chunks)))


class _Decay:
    """Products of gates inside chunks; without a gate all of them are 1.

    They are exponentials of sums of `log g <= 0`. No product is divided by
    another, and what must be 0 is masked before `exp`.
    """

    def __init__(
        self, log_gate: Tensor | None, chunk_size: int, dtype: str
    ) -> None:
        # log_gate: (b, h, n, c). up_to: log g_1 ... g_i.
        self.up_to, self.between = _decays(log_gate, chunk_size, dtype)
        self.of_chunks = None
        if self.up_to is not None:
            step = ops.arange(chunk_size, dtype="int32")
            after = ops.cast(step[:, None] > step[None, :], dtype)
            self.after = ops.matmul(log_gate, after)  # log g_{i+1} ... g_c
            # log g_1 ... g_c, after the initial state, which does not decay
            self.of_chunks = ops.pad(
                self.up_to[..., -1], [[0, 0], [0, 0], [1, 0]]
            )

    def from_start(self, x: Tensor) -> Tensor:
        """Multiplies step `i` by `g_1 ... g_i`."""
        return x if self.up_to is None else _times_exp(x, self.up_to)

    def until_end(self, x: Tensor) -> Tensor:
        """Multiplies step `i` by `g_{i+1} ... g_c`."""
        return x if self.up_to is None else _times_exp(x, self.after)


def _times_exp(x: Tensor, logarithm: Tensor) -> Tensor:
    factor = ops.exp(logarithm)
    return x * (
        factor if len(x.shape) == len(factor.shape) else factor[..., None]
    )


# The logarithms of `g_1 ... g_i` and, `[i, j]`, the decays `g_{j+1} ... g_i`.
Decays = tuple[Tensor | None, Tensor]


def _decays(log_decay: Tensor | None, entries: Any, dtype: str) -> Decays:
    """Returns what one product needs to cumulate decaying sums.

    Args:
        log_decay: Tensor of shape `(..., entries)`, or `None` for zeros.
        entries: int. The number of decays.
        dtype: string. The dtype of the matrix.
    """
    entry = ops.arange(entries, dtype="int32")
    not_later = entry[:, None] >= entry[None, :]  # [i, j]: j <= i
    if log_decay is None:
        return None, ops.cast(not_later, dtype)
    up_to = ops.matmul(log_decay, ops.cast(ops.transpose(not_later), dtype))
    logarithm = up_to[..., :, None] - up_to[..., None, :]
    return up_to, ops.exp(ops.where(not_later, logarithm, LOG_ZERO))


def _levels(log_decay: Tensor | None, entries: Any, dtype: str) -> list[Decays]:
    """Returns the decays of entries, of blocks of them, of blocks of blocks.

    One product is quadratic in the number of entries. Where that is known
    and large, it is taken inside blocks, and the sums at the ends of blocks
    are cumulated by the same rule. A graph for any length has one product.

    Args:
        log_decay: Tensor of shape `(b, h, entries)`, or `None` for zeros.
        entries: int. The number of decays.
        dtype: string. The dtype of the matrices.
    """
    if not isinstance(entries, int) or entries <= BLOCK_SIZE:
        return [_decays(log_decay, entries, dtype)]
    blocks = -(-entries // BLOCK_SIZE)
    of_block = None
    if log_decay is not None:
        log_decay = _in_blocks(log_decay, blocks)
        of_block = ops.sum(log_decay, axis=-1)
    inside = _decays(log_decay, BLOCK_SIZE, dtype)
    return [inside, *_levels(of_block, blocks, dtype)]


def _in_blocks(x: Tensor, blocks: int) -> Tensor:  # (b, h, n, ...)
    batch, heads, entries = ops.shape(x)[:3]
    rest = [[0, 0]] * (len(x.shape) - 3)
    missing = blocks * BLOCK_SIZE - entries
    x = ops.pad(x, [[0, 0], [0, 0], [0, missing], *rest])
    return ops.reshape(x, (batch, heads, blocks, BLOCK_SIZE, *x.shape[3:]))


def _cumulate(x: Tensor, levels: list[Decays]) -> Tensor:
    """Returns `y_i = g_i y_{i-1} + x_i` along axis 2 of `(b, h, n, size)`."""
    (up_to, between), *above = levels
    if not above:
        return ops.matmul(between, x)
    batch, heads, entries, size = ops.shape(x)
    blocks = -(-entries // BLOCK_SIZE)
    inside = ops.matmul(between, _in_blocks(x, blocks))
    ends = _cumulate(inside[..., -1, :], above)
    before = ops.pad(ends[:, :, :-1], [[0, 0], [0, 0], [1, 0], [0, 0]])
    before = before[..., None, :]
    if up_to is not None:
        before = before * ops.exp(up_to)[..., None]
    y = ops.reshape(inside + before, (batch, heads, blocks * BLOCK_SIZE, size))
    return y[:, :, :entries]


def _carry(
    initial: Tensor, left: Tensor, levels: list[Decays]
) -> tuple[Tensor, Tensor]:
    """Returns the sums before each chunk and after the last one.

    Args:
        initial: Tensor of shape `(b, h, ...)`.
        left: Tensor of shape `(b, h, n, ...)`, what each chunk adds.
        levels: the decays of the initial sum, 1, and of the chunks.
    """
    batch, heads, chunks = ops.shape(left)[:3]
    inner = tuple(left.shape[3:])
    sums = ops.concatenate([initial[:, :, None], left], axis=2)
    sums = ops.reshape(sums, (batch, heads, chunks + 1, math.prod(inner)))
    sums = ops.reshape(
        _cumulate(sums, levels), (batch, heads, chunks + 1, *inner)
    )
    return sums[:, :, :-1], sums[:, :, -1]
