"""Sums over the keys that a query sees, by matrix products alone.

Inside a chunk of `c` steps the quadratic form is cheaper than a loop; between
chunks the states follow in closed form, as a product with a small matrix of
decays. There is no loop over time and no scan, so that every backend compiles
it. Gradients are written: those that XLA derives copy matrices to other layouts
and keep all scores. Heads come first, so that products are of whole matrices.
"""

from typing import Any

from keras import ops

from keras_rfa.ops.decays import (
    ChunkDecay,
    cumulate,
    in_chunks,
    in_sequence,
    shifted,
)
from keras_rfa.ops.written_gradient import Tensors, with_gradient

Tensor = Any

CHUNK_SIZE = 128


def all_sums(
    q: Tensor, k: Tensor, v: Tensor, initial: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Reads `S`, the sum of `v_t k_tᵀ` over all steps, at each step.

    Args:
        q: Tensor of shape `(h, b, t, m)`, float32 like all.
        k: Tensor of shape `(h, b, s, m)`.
        v: Tensor of shape `(h, b, s, e)`.
        initial: Tensor of shape `(h, b, e, m)`, to add. `None` means 0.

    Returns:
        `S q_t`, `(h, b, t, e)`, and `S`, `(h, b, e, m)`.
    """
    tensors = {"q": q, "k": k, "v": v}
    if initial is not None:
        tensors["initial"] = initial
    return with_gradient(_all_sums, _gradient_of_all_sums)(tensors)


def _all_sums(x: Tensors) -> tuple[Tensor, Tensor]:
    state = _product(x["v"], x["k"], transpose_first=True)
    if "initial" in x:
        state = state + x["initial"]
    return _product(x["q"], state), state


def _gradient_of_all_sums(x: Tensors, upstream: tuple[Tensor, ...]) -> Tensors:
    of_sums, of_state = upstream
    _, state = _all_sums(x)
    of_state = of_state + _product(of_sums, x["q"], transpose_first=True)
    gradients = {
        "q": ops.matmul(of_sums, state),
        "k": ops.matmul(x["v"], of_state),
        "v": _product(x["k"], of_state),
        "initial": of_state,
    }
    return {name: gradients[name] for name in x}


def causal_sums(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_gate: Tensor | None,
    initial: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """Reads `S_t = g_t S_{t-1} + v_t k_tᵀ` at each step.

    Args:
        q: Tensor of shape `(h, b, t, m)`, float32 like all.
        k: Tensor of shape `(h, b, t, m)`.
        v: Tensor of shape `(h, b, t, e)`.
        log_gate: Tensor of shape `(h, b, t)`, `log g`. `None` means 0.
        initial: Tensor of shape `(h, b, e, m)`, `S_0`. `None` means 0.
        chunk_size: int. The most steps that one matrix product covers.

    Returns:
        `S_t q_t`, `(h, b, t, e)`, and the last `S_t`, `(h, b, e, m)`.
    """
    tensors = {"q": q, "k": k, "v": v}
    if log_gate is not None:
        tensors["log_gate"] = log_gate
    if initial is not None:
        tensors["initial"] = initial
    chunk_size = even_chunk(ops.shape(q)[2], chunk_size)

    def sums(x: Tensors) -> tuple[Tensor, Tensor]:
        return _Chunks(x, chunk_size).read()

    def gradient(x: Tensors, upstream: tuple[Tensor, ...]) -> Tensors:
        return _Chunks(x, chunk_size).gradient(*upstream)

    return with_gradient(sums, gradient)(tensors)


def causal_weights(
    weight: Tensor,
    log_gate: Tensor | None,
    is_weighted: bool,
    initial: Tensor,
    chunk_size: int,
) -> tuple[Tensor, Tensor]:
    """Reads `c_t = g_t c_{t-1} + w_t` at each step.

    Args:
        weight: Tensor of shape `(h, b, t)`, `w`.
        log_gate: Tensor of shape `(h, b, t)`, `log g`. `None` means 0.
        is_weighted: bool. Whether `w_t` may be other than `1 - g_t`.
        initial: Tensor of shape `(h, b)`, `c_0`, or 0.
        chunk_size: int. The most steps that one matrix product covers.

    Returns:
        `c_t`, `(h, b, t)`, and the last one, `(h, b)`.
    """
    heads, batch, steps = ops.shape(weight)
    initial = initial + ops.zeros((heads, batch), weight.dtype)
    if log_gate is not None and is_weighted:
        ones = ops.expand_dims(ops.ones_like(weight), -1)
        sums, last = causal_sums(
            ones,
            ops.expand_dims(weight, -1),
            ones,
            log_gate,
            ops.expand_dims(initial, (-2, -1)),
            chunk_size,
        )
        return sums[..., 0], last[..., 0, 0]
    chunk_size = even_chunk(steps, chunk_size)
    entries = weight if log_gate is None else log_gate
    total = running_sum(in_chunks(entries, chunk_size))
    if log_gate is None:
        total = ops.expand_dims(initial, (-2, -1)) + total
    else:
        # Nearer to 1 by what is left: c_t - 1 = (g_1 ... g_t) (c_0 - 1).
        left = ops.expand_dims(initial, (-2, -1)) * ops.exp(total)
        total = left - ops.expm1(total)
    return in_sequence(total, steps), total[..., -1, -1]


class _Chunks:
    """The sums of one sequence, cut into chunks `(h, b, n, c, ...)`.

    Args:
        x: dict of what `causal_sums` takes.
        size: int. The steps of a chunk, `c`.
    """

    def __init__(self, x: Tensors, size: int) -> None:
        self.steps, self.size = ops.shape(x["q"])[2], size
        self.q, self.k, self.v = (self.split(x[name]) for name in "qkv")
        log_gate = x.get("log_gate")
        if log_gate is not None:
            log_gate = self.split(log_gate)
        self.decay = ChunkDecay(log_gate, size, self.q.dtype)
        self.initial = x.get("initial")

        # What each chunk leaves to the next, and the states between chunks.
        self.k_at_end = self.decay.until_end(self.k)
        left = _product(self.v, self.k_at_end, transpose_first=True)
        self.before, self.last = self.carry(self.initial, left)

    def read(self) -> tuple[Tensor, Tensor]:
        """Returns the sums that the queries see, and the last state."""
        sums = ops.matmul(self.scores(self.q, self.k), self.v)
        if self.before is not None:
            # From before the chunk: g_1 ... g_i S q_i.
            q = self.decay.from_start(self.q)
            sums = sums + _product(q, self.before)
        return self.join(sums), self.last

    def gradient(self, of_sums: Tensor, of_last: Tensor) -> Tensors:
        """Returns the gradient of each input.

        Args:
            of_sums: Tensor of shape `(h, b, t, e)`, that of the sums.
            of_last: Tensor of shape `(h, b, e, m)`, that of the last state.
        """
        decay, of_sums = self.decay, self.split(of_sums)
        # What a chunk left is read by the later ones, the last one first.
        q_from_start = decay.from_start(self.q)
        read = _product(of_sums, q_from_start, transpose_first=True)
        of_left, of_initial = self.carry(of_last, read, reverse=True)

        of_scores = self.scores(of_sums, self.v)
        q = ops.matmul(of_scores, self.k)
        k = _product(of_scores, self.q, transpose_first=True)
        scores = self.scores(self.q, self.k)
        v = _product(scores, of_sums, transpose_first=True)
        if self.before is not None:
            q = q + decay.from_start(ops.matmul(of_sums, self.before))
        k = k + decay.until_end(ops.matmul(self.v, of_left))
        v = v + _product(self.k_at_end, of_left)
        gradients = {"q": self.join(q), "k": self.join(k), "v": self.join(v)}
        if self.initial is not None:
            gradients["initial"] = of_initial
        if decay.up_to is not None:
            # A gate decays what lies before it for those that come after.
            across = ops.sum(self.q * q - self.k * k, axis=-1)
            later = ops.flip(running_sum(ops.flip(across, (2, 3))), (2, 3))
            last = ops.sum(self.last * of_last, axis=(-2, -1))
            gradients["log_gate"] = self.join(later) + ops.expand_dims(last, -1)
        return gradients

    def scores(self, x: Tensor, y: Tensor) -> Tensor:
        """Returns `(x_i·y_j) g_{j+1} ... g_i` for `j <= i`, else 0."""
        return _product(x, y) * self.decay.between

    def carry(
        self, initial: Tensor | None, left: Tensor, reverse: bool = False
    ) -> tuple[Tensor | None, Tensor]:
        """Returns the sums before each chunk, and after the last one.

        Args:
            initial: Tensor of shape `(h, b, e, m)`, or `None` for zeros.
            left: Tensor of shape `(h, b, n, e, m)`, what each chunk adds.
            reverse: bool. Whether to go from the last chunk to the first.
        """
        heads, batch, chunks, *matrix = ops.shape(left)
        if initial is None:
            if isinstance(chunks, int) and chunks == 1:
                return None, left[:, :, 0]
            initial = ops.zeros_like(left[:, :, 0])
        decays = self.decay.of_chunks
        if reverse:
            left = ops.flip(left, axis=2)
            decays = None if decays is None else ops.flip(decays, axis=2)
        if decays is not None:  # nothing lies before the initial sum
            decays = ops.pad(decays, [[0, 0], [0, 0], [1, 0]])
        sums = ops.concatenate([ops.expand_dims(initial, 2), left], axis=2)
        size = matrix[0] * matrix[1]
        sums = ops.reshape(sums, (heads, batch, chunks + 1, size))
        sums = cumulate(sums, decays)
        sums = ops.reshape(sums, (heads, batch, chunks + 1, *matrix))
        before, last = sums[:, :, :-1], sums[:, :, -1]
        return ops.flip(before, axis=2) if reverse else before, last

    def split(self, x: Tensor) -> Tensor:
        """Returns `(h, b, t, ...)` as `(h, b, n, c, ...)`."""
        return in_chunks(x, self.size)

    def join(self, x: Tensor) -> Tensor:
        """Returns `(h, b, n, c, ...)` as `(h, b, t, ...)`."""
        return in_sequence(x, self.steps)


def _product(x: Tensor, y: Tensor, transpose_first: bool = False) -> Tensor:
    """Returns `x yᵀ`, or `xᵀ y`, of the last two axes."""
    if transpose_first:
        return ops.matmul(ops.swapaxes(x, -1, -2), y)
    return ops.matmul(x, ops.swapaxes(y, -1, -2))


def even_chunk(steps: Any, chunk_size: int) -> int:
    """Returns the size of equal chunks that cover the steps."""
    if not isinstance(steps, int):
        return chunk_size  # not known when the graph is built
    if steps <= chunk_size:
        return max(steps, 1)
    chunks = -(-steps // chunk_size)
    return min(chunk_size, 8 * -(-steps // (8 * chunks)))


def running_sum(x: Tensor) -> Tensor:
    """Returns the sum of each step and all before it.

    By products with triangles: sums along an axis are slow on some backends.

    Args:
        x: Tensor of shape `(h, b, n, c)`.

    Returns:
        Tensor like `x`.
    """
    step = ops.arange(ops.shape(x)[-1], dtype="int32")
    not_later = ops.cast(step[:, None] <= step[None, :], x.dtype)
    inside = ops.matmul(x, not_later)
    return inside + shifted(cumulate(inside[..., -1:]))
