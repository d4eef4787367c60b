"""What queries read from the states of linear attention, before division."""

from typing import Any, NamedTuple

from keras import ops

from keras_rfa.ops.checks import (
    check_attention_shapes,
    check_positive,
    check_shape,
)
from keras_rfa.ops.decays import log_gates
from keras_rfa.ops.state import SUM_DTYPE, State, check_state
from keras_rfa.ops.sums import (
    CHUNK_SIZE,
    all_sums,
    causal_sums,
    causal_weights,
)

Tensor = Any

# Sums of a smaller weight keep a scale, so that its inverse is a number.
LEAST_WEIGHT = 1e-30


class Sums(NamedTuple):
    """What the queries read from the states that they see."""

    numerator: Tensor  # [S_tᵀ φ(q_t), z_t·φ(q_t)]  (h, b, t, e + 1)
    weight: Tensor  # c_t  (h, b, t), or (h, b, 1) where it is the same

    def divide(self, epsilon: float) -> Tensor:
        """Returns the outputs, `(b, t, h, e)`, float32."""
        # The quotient does not change with the scale of the sums. Taken out, it
        # keeps the square of the denominator, which is in the gradient, in the
        # range of float32: features or weights may be very large, and gates
        # may let next to nothing in.
        scale = 1 / ops.stop_gradient(ops.maximum(self.weight, LEAST_WEIGHT))
        sums = self.numerator * ops.expand_dims(scale, -1)
        denominator = ops.maximum(
            sums[..., -1], epsilon * (self.weight * scale)
        )
        denominator = ops.where(denominator > 0, denominator, scale)  # 0 / 1
        return heads_last(sums[..., :-1] / ops.expand_dims(denominator, -1))


def attention_sums(
    query_features: Tensor,
    key_features: Tensor,
    value: Tensor,
    *,
    causal: bool,
    gate_logits: Tensor | None,
    key_mask: Tensor | None,
    key_weight: Tensor | None,
    initial_state: State | None,
    return_state: bool,
    chunk_size: int | None,
) -> tuple[Sums, State | None]:
    """Does all of `linear_attention` but the division.

    The quotient needs no features, so that a layer can compute those again in
    the backward pass without the sums.
    """
    chunk_size = CHUNK_SIZE if chunk_size is None else chunk_size
    check_attention_shapes(
        query_features,
        key_features,
        value,
        gate_logits,
        key_mask,
        key_weight,
        causal,
    )
    check_positive("chunk_size", chunk_size)
    if initial_state is not None:
        batch, _, heads, width = key_features.shape
        check_state(initial_state, batch, heads, width, value.shape[-1])
    q = _sum_form(query_features)
    keys = _entering(key_features, value, gate_logits, key_mask, key_weight)
    if causal and initial_state is not None and value.shape[1] == 1:
        state = _after_step(keys, initial_state)
        return read_sums(query_features, state), state
    if causal:
        return _up_to_each(q, keys, initial_state, chunk_size)
    if gate_logits is None:
        return _all(q, keys, initial_state)
    if initial_state is not None or return_state:
        raise ValueError(
            "Gated attention that is not causal also runs from the last step "
            "to the first, so it can neither take nor return a state. Pass "
            "`causal=True`, or leave out `initial_state` and `return_state`."
        )
    return _on_both_sides(q, keys, chunk_size), None


def read_sums(query_features: Tensor, state: State) -> Sums:
    """Does all of `read_state` but the division."""
    check_state(state, None, None, None, None, with_indices=True, name="state")
    batch, heads, width, _ = state["s"].shape
    check_shape(
        "query_features",
        query_features,
        batch=batch,
        steps=None,
        heads=heads,
        m=width,
    )
    # In the layout of the state, which is read at every step of a decoder and
    # is much larger than what is read from it.
    q = ops.transpose(ops.cast(query_features, SUM_DTYPE), (0, 2, 1, 3))
    sums = ops.concatenate(
        [
            ops.matmul(q, state["s"]),
            ops.matmul(q, ops.expand_dims(state["z"], -1)),
        ],
        axis=-1,
    )
    weight = ops.expand_dims(ops.transpose(state["weight"]), -1)
    return Sums(ops.transpose(sums, (1, 0, 2, 3)), weight)


def state_of_keys(
    key_features: Tensor,
    value: Tensor,
    key_mask: Tensor | None,
    key_weight: Tensor | None,
) -> State:
    """Returns the state that keys leave behind where none was before."""
    keys = _entering(key_features, value, None, key_mask, key_weight)
    matrix = ops.matmul(ops.swapaxes(keys.v, -1, -2), keys.k)
    return _to_state(matrix, ops.sum(keys.weight, axis=2))


class _Keys(NamedTuple):
    """What enters the sums, heads first. `w` is `a_t`, or `(1 - g_t) a_t`."""

    k: Tensor  # w φ(k)  (h, b, s, m)
    v: Tensor  # [v, 1]: with 1 for v, the sums are denominators  (h, b, s, e+1)
    weight: Tensor  # w  (h, b, s)
    log_gate: Tensor | None  # log g  (h, b, s)
    is_weighted: bool  # whether some a_t is neither 0 nor 1


def _entering(
    key_features: Tensor,
    value: Tensor,
    gate_logits: Tensor | None,
    key_mask: Tensor | None,
    key_weight: Tensor | None,
) -> _Keys:
    k, v = _sum_form(key_features), _sum_form(value)
    weight = ops.ones_like(k[..., 0])
    if key_weight is not None:
        weight = _sum_form(key_weight)
    log_gate = None
    if gate_logits is not None:
        log_gate, log_entering = log_gates(_sum_form(gate_logits))
        weight = ops.exp(log_entering) * weight  # 1 - g_t
    if key_mask is not None:
        counts = ops.expand_dims(ops.cast(key_mask, "bool"), 0)
        weight = ops.where(counts, weight, 0)
        k = ops.where(ops.expand_dims(counts, -1), k, 0)
        v = ops.where(ops.expand_dims(counts, -1), v, 0)
        if log_gate is not None:
            log_gate = ops.where(counts, log_gate, 0)
    if log_gate is not None or key_weight is not None:
        k = k * ops.expand_dims(weight, -1)
    v = ops.concatenate([v, ops.ones_like(v[..., :1])], axis=-1)
    return _Keys(k, v, weight, log_gate, key_weight is not None)


def _all(
    q: Tensor, keys: _Keys, initial_state: State | None
) -> tuple[Sums, State]:
    """Returns the sums that each query reads, and the state."""
    initial, initial_weight = _from_state(initial_state)
    sums, matrix = all_sums(q, keys.k, keys.v, initial)
    weight = initial_weight + ops.sum(keys.weight, axis=2)
    return Sums(sums, ops.expand_dims(weight, -1)), _to_state(matrix, weight)


def _up_to_each(
    q: Tensor, keys: _Keys, initial_state: State | None, chunk_size: int
) -> tuple[Sums, State]:
    """Does the same over the keys up to the step of the query."""
    initial, initial_weight = _from_state(initial_state)
    sums, matrix = causal_sums(
        q, keys.k, keys.v, keys.log_gate, initial, chunk_size
    )
    weight, last = causal_weights(*keys[2:], initial_weight, chunk_size)
    return Sums(sums, weight), _to_state(matrix, last)


def _after_step(keys: _Keys, state: State) -> State:
    """Returns the state after a single step, by the recurrence itself.

    In its own layout, so that a compiler of a loop can write it in place.
    """
    k, v, weight = (ops.swapaxes(x[:, :, 0], 0, 1) for x in keys[:3])
    v = ops.expand_dims(v[..., :-1], -2)
    s, z, c = state["s"], state["z"], state["weight"]
    if keys.log_gate is not None:
        gate = ops.exp(ops.transpose(keys.log_gate[:, :, 0]))
        s = ops.expand_dims(gate, (-2, -1)) * s
        z = ops.expand_dims(gate, -1) * z
        c = gate * c
    s = s + ops.expand_dims(k, -1) * v
    return {"s": s, "z": z + k, "weight": c + weight}


def _on_both_sides(q: Tensor, keys: _Keys, chunk_size: int) -> Sums:
    """Does the same from both ends, without a state."""

    def both(x: Tensor) -> Tensor:
        # The reversed sequence runs beside the sequence, as further heads.
        return ops.concatenate([x, ops.flip(x, axis=2)], axis=0)

    def add(x: Tensor, own: Tensor) -> Tensor:
        forward, backward = ops.split(x, 2, axis=0)
        return forward + ops.flip(backward, axis=2) - own

    k, v, weight, log_gate = (both(x) for x in keys[:4])
    sums, _ = causal_sums(both(q), k, v, log_gate, None, chunk_size)
    weights, _ = causal_weights(
        weight, log_gate, keys.is_weighted, 0.0, chunk_size
    )
    # Each has the step itself, which counts once.
    own = ops.sum(q * keys.k, axis=-1, keepdims=True) * keys.v
    return Sums(add(sums, own), add(weights, keys.weight))


def _sum_form(x: Tensor) -> Tensor:
    return heads_first(ops.cast(x, SUM_DTYPE))


def heads_first(x: Tensor) -> Tensor:
    """Turns `(b, t, h, ...)` into `(h, b, t, ...)`."""
    return ops.transpose(x, (2, 0, 1, *range(3, len(x.shape))))


def heads_last(x: Tensor) -> Tensor:
    """Turns `(h, b, t, ...)` into `(b, t, h, ...)`."""
    return ops.transpose(x, (1, 2, 0, *range(3, len(x.shape))))


def _from_state(state: State | None) -> tuple[Tensor | None, Tensor]:
    """Returns `[S, z]ᵀ`, `(h, b, e + 1, m)`, and the weight, `(h, b)`."""
    if state is None:
        return None, 0.0
    matrix = ops.concatenate(
        [state["s"], ops.expand_dims(state["z"], -1)], axis=-1
    )
    return ops.transpose(matrix, (1, 0, 3, 2)), ops.transpose(state["weight"])


def _to_state(matrix: Tensor, weight: Tensor) -> State:
    matrix = ops.transpose(matrix, (1, 0, 3, 2))
    return {
        "s": matrix[..., :-1],
        "z": matrix[..., -1],
        "weight": ops.transpose(weight),
    }
