"""Products of gates, and sums that they decay.

They are exponentials of sums of `log g <= 0`. No product is divided by
another, and what must be 0 is masked before `exp`. As everywhere between the
features and the output, heads come first.
"""

from typing import Any, NamedTuple

from keras import ops

Tensor = Any

# Entries that one matrix product cumulates.
BLOCK_SIZE = 32
# Stands for log 0: chosen before `exp`, never multiplied after it.
LOG_ZERO = -1e9
# What is left of a state by such a gate is lost beside what enters, and the
# sum of larger logarithms would cost the digits of those of open gates.
LOG_SHUT = -20.0
# The share that a gate lets in, 1 - g, is at least that of this logit, 4e-18:
# a gradient is divided by it, and times values must stay in float32.
LARGEST_LOGIT = 40.0


def log_gates(gate_logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns `log g`, of shut gates `LOG_SHUT`, and `log (1 - g)`."""
    logits = ops.minimum(gate_logits, LARGEST_LOGIT)
    log_gate = ops.maximum(ops.log_sigmoid(logits), LOG_SHUT)
    return log_gate, ops.log_sigmoid(-logits)


class ChunkDecay:
    """Products of gates inside chunks; without a gate all of them are 1.

    Args:
        log_gate: Tensor of shape `(h, b, n, c)`, or `None`.
        size: int. The steps of a chunk, `c`.
        dtype: string. The dtype of the products.
    """

    def __init__(self, log_gate: Tensor | None, size: int, dtype: str) -> None:
        # log g_1 ... g_i, and g_{j+1} ... g_i for j <= i, else 0.
        self.up_to, self.between = _decays(log_gate, size, dtype)
        self.after = self.of_chunks = None
        if self.up_to is not None:
            step = ops.arange(size, dtype="int32")
            after = ops.cast(step[:, None] > step[None, :], dtype)
            self.after = ops.matmul(log_gate, after)  # log g_{i+1} ... g_c
            self.of_chunks = self.up_to[..., -1]  # log g_1 ... g_c

    def from_start(self, x: Tensor) -> Tensor:
        """Multiplies step `i` of `(h, b, n, c, m)` by `g_1 ... g_i`."""
        return _decayed(x, self.up_to)

    def until_end(self, x: Tensor) -> Tensor:
        """Multiplies step `i` of `(h, b, n, c, m)` by `g_{i+1} ... g_c`."""
        return _decayed(x, self.after)


def _decayed(x: Tensor, log_decay: Tensor | None) -> Tensor:
    """Multiplies vectors, along the last axis, by what is left of them."""
    if log_decay is None:
        return x
    return x * ops.expand_dims(ops.exp(log_decay), -1)


class Levels(NamedTuple):
    """What one product needs to cumulate decaying sums."""

    up_to: Tensor | None  # log g_1 ... g_i  (..., entries)
    between: Tensor  # g_{j+1} ... g_i at [i, j]  (..., entries, entries)


def _decays(log_decay: Tensor | None, entries: Any, dtype: str) -> Levels:
    """Returns the products of decays `(..., entries)`; `None` means zeros."""
    entry = ops.arange(entries, dtype="int32")
    not_later = entry[:, None] >= entry[None, :]  # [i, j]: j <= i
    if log_decay is None:
        return Levels(None, ops.cast(not_later, dtype))
    up_to = ops.matmul(log_decay, ops.cast(ops.transpose(not_later), dtype))
    logarithm = ops.expand_dims(up_to, -1) - ops.expand_dims(up_to, -2)
    return Levels(up_to, ops.exp(ops.where(not_later, logarithm, LOG_ZERO)))


def _levels(log_decay: Tensor | None, entries: Any, dtype: str) -> list[Levels]:
    """Returns the decays of entries, of blocks of them, of blocks of blocks.

    One product is quadratic in the number of entries. Where that is known
    and large, it is taken inside blocks, and the sums at the ends of blocks
    are cumulated by the same rule. A graph for any length has one product.
    """
    if not isinstance(entries, int) or entries <= BLOCK_SIZE:
        return [_decays(log_decay, entries, dtype)]
    blocks = -(-entries // BLOCK_SIZE)
    of_block = None
    if log_decay is not None:
        log_decay = in_chunks(log_decay, BLOCK_SIZE)
        of_block = ops.sum(log_decay, axis=-1)
    inside = _decays(log_decay, BLOCK_SIZE, dtype)
    return [inside, *_levels(of_block, blocks, dtype)]


def cumulate(x: Tensor, log_decay: Tensor | None = None) -> Tensor:
    """Returns `y_i = g_i y_{i-1} + x_i`.

    Args:
        x: Tensor of shape `(h, b, n, size)`.
        log_decay: Tensor of shape `(h, b, n)`, `log g`. `None` means 0.

    Returns:
        Tensor like `x`.
    """
    return _cumulate(x, _levels(log_decay, ops.shape(x)[2], x.dtype))


def _cumulate(x: Tensor, levels: list[Levels]) -> Tensor:
    (up_to, between), *above = levels
    if not above:
        return ops.matmul(between, x)
    inside = ops.matmul(between, in_chunks(x, BLOCK_SIZE))
    before = shifted(_cumulate(inside[..., -1, :], above))
    y = inside + _decayed(ops.expand_dims(before, -2), up_to)
    return in_sequence(y, ops.shape(x)[2])


def shifted(x: Tensor) -> Tensor:
    """Returns the entry before each along axis 2 of four, first zeros."""
    return ops.pad(x[:, :, :-1], [[0, 0], [0, 0], [1, 0], [0, 0]])


def in_chunks(x: Tensor, size: int) -> Tensor:
    """Cuts the entries, axis 2, into chunks; zeros complete the last one."""
    heads, batch, steps, *rest = ops.shape(x)
    # At least one, also where it is not known, and a form that JAX can compare.
    chunks = (steps + size) // size
    if isinstance(steps, int):
        chunks = max(1, -(-steps // size))
    padding = chunks * size - steps
    x = ops.pad(x, [[0, 0], [0, 0], [0, padding], *([[0, 0]] * len(rest))])
    return ops.reshape(x, (heads, batch, chunks, size, *rest))


def in_sequence(x: Tensor, steps: Any) -> Tensor:
    """Joins chunks again, without what completed the last one."""
    heads, batch, chunks, size, *rest = ops.shape(x)
    return ops.reshape(x, (heads, batch, chunks * size, *rest))[:, :, :steps]
