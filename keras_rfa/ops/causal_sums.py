"""Causal sums by matrix products alone.

Inside a chunk of `c` steps the quadratic form is cheaper than a loop; between
chunks the states follow in closed form, as a product with a small matrix of
decays. There is no loop over time and no scan, so that every backend compiles
and differentiates it.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_rfa.ops.state import State, zero_state

Tensor = Any

# Chunks whose states are combined by one matrix product.
BLOCK_SIZE = 32
# Stands for log 0: chosen before `exp`, never multiplied after it.
LOG_ZERO = -1e9


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
    scores = scores * decay.between()
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
    before, last = {}, {}
    for name in left:
        before[name], last[name] = _carry(
            initial[name], left[name], decay.of_chunk
        )

    # From before the chunk: g_1 ... g_i φ(q_i)ᵀ S.
    q = decay.from_start(q)
    numerator = numerator + ops.matmul(q, before["s"])
    denominator = denominator + ops.einsum("bhncm,bhnm->bhnc", q, before["z"])
    seen = decay.from_start(
        before["weight"][..., None] + ops.zeros_like(weight)
    )
    seen = seen + decay.sum_inside(weight)
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
        self.log_gate = log_gate  # (b, h, n, c)
        step = ops.arange(chunk_size, dtype="int32")
        self.not_later = step[:, None] >= step[None, :]  # [i, j]: j <= i
        self.dtype = dtype
        self.of_chunk = None
        if log_gate is not None:
            up_to = ops.cast(ops.transpose(self.not_later), dtype)
            after = ops.cast(step[:, None] > step[None, :], dtype)
            self.up_to = ops.matmul(log_gate, up_to)  # log g_1 ... g_i
            self.after = ops.matmul(log_gate, after)  # log g_{i+1} ... g_c
            self.of_chunk = self.up_to[..., -1]  # log g_1 ... g_c

    def between(self) -> Tensor:
        """`[i, j]`: `g_{j+1} ... g_i`, and 0 where step `i` sees no `j`."""
        if self.log_gate is None:
            return ops.cast(self.not_later, self.dtype)
        logarithm = self.up_to[..., :, None] - self.up_to[..., None, :]
        return ops.exp(ops.where(self.not_later, logarithm, LOG_ZERO))

    def from_start(self, x: Tensor) -> Tensor:
        """Multiplies step `i` by `g_1 ... g_i`."""
        return x if self.log_gate is None else _times_exp(x, self.up_to)

    def until_end(self, x: Tensor) -> Tensor:
        """Multiplies step `i` by `g_{i+1} ... g_c`."""
        return x if self.log_gate is None else _times_exp(x, self.after)

    def sum_inside(self, weight: Tensor) -> Tensor:
        """The part of `c_i` that comes from the chunk itself."""
        if self.log_gate is None:
            not_later = ops.transpose(self.not_later)
            return ops.matmul(weight, ops.cast(not_later, self.dtype))
        # (1 - g_1) g_2 ... g_i + ... + (1 - g_i) = 1 - g_1 ... g_i
        return -ops.expm1(self.up_to)


def _times_exp(x: Tensor, logarithm: Tensor) -> Tensor:
    factor = ops.exp(logarithm)
    return x * (
        factor if len(x.shape) == len(factor.shape) else factor[..., None]
    )


def _carry(
    initial: Tensor, left: Tensor, log_decay: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Returns the sums before each chunk and after the last one.

    Args:
        initial: Tensor of shape `(b, h, ...)`.
        left: Tensor of shape `(b, h, n, ...)`, what each chunk adds.
        log_decay: Tensor of shape `(b, h, n)`, by what it multiplies.
    """
    batch, heads, chunks = ops.shape(left)[:3]
    inner = tuple(left.shape[3:])
    size = 1
    for dimension in inner:
        size *= dimension
    added = ops.concatenate([initial[:, :, None], left], axis=2)
    added = ops.reshape(added, (batch, heads, chunks + 1, size))
    if log_decay is not None:  # nothing comes before the initial state
        log_decay = ops.pad(log_decay, [[0, 0], [0, 0], [1, 0]])
    sums = _decayed_cumulative_sum(added, log_decay)
    sums = ops.reshape(sums, (batch, heads, chunks + 1, *inner))
    return sums[:, :, :-1], sums[:, :, -1]


def _decayed_cumulative_sum(x: Tensor, log_decay: Tensor | None) -> Tensor:
    """`y_i = exp(log_decay_i) y_{i-1} + x_i` along axis 2, by products.

    One product is quadratic in the number of entries. Where that is known
    and large, it is taken inside blocks, and the sums at the ends of blocks
    are cumulated by the same rule. A graph for any length has one product.

    Args:
        x: Tensor of shape `(b, h, n, size)`.
        log_decay: Tensor of shape `(b, h, n)` or `None` for zeros.
    """
    batch, heads, entries, size = ops.shape(x)
    if not isinstance(entries, int) or entries <= BLOCK_SIZE:
        return _decayed_sums(x, log_decay)[0]
    blocks = -(-entries // BLOCK_SIZE)
    padding = blocks * BLOCK_SIZE - entries
    x = ops.pad(x, [[0, 0], [0, 0], [0, padding], [0, 0]])
    x = ops.reshape(x, (batch, heads, blocks, BLOCK_SIZE, size))
    of_block = None
    if log_decay is not None:
        log_decay = ops.pad(log_decay, [[0, 0], [0, 0], [0, padding]])
        log_decay = ops.reshape(log_decay, (batch, heads, blocks, BLOCK_SIZE))
        of_block = ops.sum(log_decay, axis=-1)
    inside, up_to = _decayed_sums(x, log_decay)
    ends = _decayed_cumulative_sum(inside[..., -1, :], of_block)
    before = ops.pad(ends[:, :, :-1], [[0, 0], [0, 0], [1, 0], [0, 0]])
    before = before[..., None, :]
    if up_to is not None:
        before = before * ops.exp(up_to)[..., None]
    y = ops.reshape(inside + before, (batch, heads, blocks * BLOCK_SIZE, size))
    return y[:, :, :entries]


def _decayed_sums(
    x: Tensor, log_decay: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The same along the axis before the last, by one product.

    Returns also the logarithms of the decays from the first entry on.
    """
    entries = ops.shape(x)[-2]
    entry = ops.arange(entries, dtype="int32")
    not_later = entry[:, None] >= entry[None, :]  # [i, j]: j <= i
    if log_decay is None:
        return ops.matmul(ops.cast(not_later, x.dtype), x), None
    up_to = ops.matmul(log_decay, ops.cast(ops.transpose(not_later), x.dtype))
    logarithm = up_to[..., :, None] - up_to[..., None, :]
    decay = ops.exp(ops.where(not_later, logarithm, LOG_ZERO))
    return ops.matmul(decay, x), up_to
