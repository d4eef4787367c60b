"""Linear attention: `φ(q)ᵀ S / φ(q)ᵀ z` in every form, from features."""

from typing import Any

from keras import ops

from keras_rfa.ops.causal_sums import Sums, causal_sums, log_gates
from keras_rfa.ops.checks import (
    check_attention_shapes,
    check_number,
    check_positive,
    check_shape,
)
from keras_rfa.ops.state import SUM_DTYPE, State, check_state

Tensor = Any

CHUNK_SIZE = 128


def linear_attention(
    query_features: Tensor,
    key_features: Tensor,
    value: Tensor,
    *,
    causal: bool = False,
    gate_logits: Tensor | None = None,
    key_mask: Tensor | None = None,
    key_weight: Tensor | None = None,
    initial_state: State | None = None,
    return_state: bool = False,
    epsilon: float = 1e-3,
    chunk_size: int | None = None,
) -> Any:
    """Attends from queries to keys in time and memory linear in their number.

    With `a_t` the weight of a key, 1 unless given, and 0 at a masked one:

        plain    S_t = S_{t-1} + a_t φ(k_t) v_tᵀ
        gated    S_t = g_t S_{t-1} + (1 - g_t) a_t φ(k_t) v_tᵀ
                 g_t = sigmoid(gate_logits_t)
        output   o_t = φ(q_t)ᵀ S_t / max(φ(q_t)·z_t, epsilon c_t)

    `z` and `c` follow the recurrence of `S`, with `φ(k_t)` and 1 in the place
    of `φ(k_t) v_tᵀ`. A masked step leaves a gated state as it was. Where no
    key has been seen the output is 0. Without `causal` every query sees the
    sums over all keys; with a gate and without `causal` it sees
    `S_t + R_t`, where `R` runs the same recurrence from the last step to the
    first and the step's own term counts once.

    Where the length is not known when a graph is built, as in an export for
    any length, causal forms combine all chunks by one product, quadratic in
    their number: it costs as much as all else from about 64k steps on.

    Args:
        query_features: Tensor of shape `(b, t, h, m)`.
        key_features: Tensor of shape `(b, s, h, m)`.
        value: Tensor of shape `(b, s, h, e)`.
        causal: bool. Whether a query sees the keys up to its own step only.
            Then, and with a gate, `t` and `s` must be equal.
        gate_logits: Tensor of shape `(b, t, h)`, the forget gate before its
            sigmoid. `None` means plain sums.
        key_mask: bool tensor of shape `(b, s)`, `True` at keys that count.
        key_weight: Tensor of shape `(b, s, h)`, not negative. `None` means 1.
        initial_state: dict `{"s": (b, h, m, e), "z": (b, h, m),
            "weight": (b, h)}`, what earlier keys left behind.
        return_state: bool. Whether to return the last state too.
        epsilon: float. The floor of the denominator as a share of `c_t`. An
            estimate of a positive denominator need not be positive.
        chunk_size: int. The most steps that one matrix product covers. It
            changes speed and memory, never the answer. Defaults to 128.

    Returns:
        Tensor of shape `(b, t, h, e)` in the dtype of `value`; with
        `return_state` a pair of it and the last state. States and everything
        that is summed are float32.

    Raises:
        ValueError: if the shapes do not fit, if `initial_state` has other
            keys, shapes or dtypes, or if a two-sided gated form is asked to
            take or return a state.

    Example:

    >>> projection = keras.random.normal((4, 32, 16))
    >>> features = keras_rfa.ops.feature_map(
    ...     keras.random.normal((2, 10, 4, 16)), projection)
    >>> value = keras.random.normal((2, 10, 4, 8))
    >>> output = keras_rfa.ops.linear_attention(
    ...     features, features, value, causal=True)
    >>> output.shape
    (2, 10, 4, 8)

    References:

    - [Peng et al., 2021](https://arxiv.org/abs/2103.02143)
    - [Katharopoulos et al., 2020](https://arxiv.org/abs/2006.16236)
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
    _check_options(
        causal, gate_logits, initial_state, return_state, epsilon, chunk_size
    )
    q, k, v = (
        ops.cast(x, SUM_DTYPE) for x in (query_features, key_features, value)
    )
    batch, _, heads, width = k.shape
    if initial_state is not None:
        check_state(initial_state, batch, heads, width, v.shape[-1])

    k, v, weight, log_gate = _entering(k, v, gate_logits, key_mask, key_weight)
    if causal:
        sums, state = causal_sums(
            q, k, v, weight, log_gate, initial_state, chunk_size
        )
    elif log_gate is None:
        state = _all_keys(k, v, weight, initial_state)
        sums = _read(q, state)
    else:
        sums, state = _two_sided(q, k, v, weight, log_gate, chunk_size), None
    output = ops.cast(sums.divide(epsilon), value.dtype)
    return (output, state) if return_state else output


def read_state(
    query_features: Tensor, state: State, epsilon: float = 1e-3
) -> Tensor:
    """Attends to keys of which only the state is left.

    Args:
        query_features: Tensor of shape `(b, t, h, m)`.
        state: dict, as `linear_attention` returns it.
        epsilon: float. The floor of the denominator as a share of the weight.

    Returns:
        Tensor of shape `(b, t, h, e)`, float32.

    Raises:
        ValueError: if the state has other keys, shapes or dtypes, or if the
            features do not fit it.

    Example:

    >>> features = keras.ops.ones((1, 3, 1, 4))
    >>> state = keras_rfa.ops.encode_state(features, features)
    >>> keras_rfa.ops.read_state(features[:, :1], state).shape
    (1, 1, 1, 4)
    """
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
    return _read(ops.cast(query_features, SUM_DTYPE), state).divide(epsilon)


def _read(q: Tensor, state: State) -> Sums:
    return Sums(
        ops.einsum("bthm,bhme->bthe", q, state["s"]),
        ops.einsum("bthm,bhm->bth", q, state["z"]),
        state["weight"][:, None] + ops.zeros_like(q[..., 0]),
    )


def encode_state(
    key_features: Tensor,
    value: Tensor,
    *,
    key_mask: Tensor | None = None,
    key_weight: Tensor | None = None,
    initial_state: State | None = None,
) -> State:
    """Compresses keys and values to the state that queries read.

    Args:
        key_features: Tensor of shape `(b, s, h, m)`.
        value: Tensor of shape `(b, s, h, e)`.
        key_mask: bool tensor of shape `(b, s)`, `True` at keys that count.
        key_weight: Tensor of shape `(b, s, h)`, not negative. `None` means 1.
        initial_state: dict, the state that earlier keys left behind.

    Returns:
        dict, as `linear_attention` returns it.

    Raises:
        ValueError: if the shapes do not fit, or if `initial_state` has other
            keys, shapes or dtypes.

    Example:

    >>> features = keras.ops.ones((1, 3, 1, 4))
    >>> state = keras_rfa.ops.encode_state(features, features)
    >>> state["weight"]
    [[3.]]
    """
    check_attention_shapes(
        None, key_features, value, None, key_mask, key_weight, causal=False
    )
    k, v = ops.cast(key_features, SUM_DTYPE), ops.cast(value, SUM_DTYPE)
    if initial_state is not None:
        batch, _, heads, width = k.shape
        check_state(initial_state, batch, heads, width, v.shape[-1])
    k, v, weight, _ = _entering(k, v, None, key_mask, key_weight)
    return _all_keys(k, v, weight, initial_state)


def _entering(
    k: Tensor,
    v: Tensor,
    gate_logits: Tensor | None,
    key_mask: Tensor | None,
    key_weight: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Returns what enters the sums: `w φ(k)`, `v`, `w` and `log g`.

    `w` is `a_t`, or `(1 - g_t) a_t` with a gate.
    """
    weight = ops.ones_like(k[..., 0])  # (b, s, h)
    if key_weight is not None:
        weight = ops.cast(key_weight, k.dtype)
    log_gate = None
    if gate_logits is not None:
        gate_logits = ops.cast(gate_logits, k.dtype)
        log_gate = log_gates(gate_logits)
        weight = ops.exp(ops.log_sigmoid(-gate_logits)) * weight  # 1 - g_t
    if key_mask is not None:
        counts = ops.cast(key_mask, "bool")[:, :, None]
        weight = ops.where(counts, weight, 0)
        k = ops.where(counts[..., None], k, 0)
        v = ops.where(counts[..., None], v, 0)
        if log_gate is not None:
            log_gate = ops.where(counts, log_gate, 0)
    if log_gate is not None or key_weight is not None:
        k = k * weight[..., None]
    return k, v, weight, log_gate


def _all_keys(
    k: Tensor, v: Tensor, weight: Tensor, initial: State | None
) -> State:
    state = {
        "s": ops.einsum("bshm,bshe->bhme", k, v),
        "z": ops.sum(k, axis=1),
        "weight": ops.sum(weight, axis=1),
    }
    if initial is not None:
        state = {name: initial[name] + state[name] for name in state}
    return state


def _two_sided(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weight: Tensor,
    log_gate: Tensor,
    chunk_size: int,
) -> Sums:
    # The reversed sequence runs beside the sequence, as further heads.
    heads = k.shape[2]
    q2, k2, v2, weight2, log_gate2 = (
        ops.concatenate([x, ops.flip(x, axis=1)], axis=2)
        for x in (q, k, v, weight, log_gate)
    )
    sums, _ = causal_sums(q2, k2, v2, weight2, log_gate2, None, chunk_size)
    # Each has the step itself, which counts once.
    own = ops.sum(q * k, axis=-1)
    own = Sums(own[..., None] * v, own, weight)
    return Sums(
        *(
            both[:, :, :heads] + ops.flip(both[:, :, heads:], axis=1) - once
            for both, once in zip(sums, own, strict=True)
        )
    )


def _check_options(
    causal: bool,
    gate_logits: Tensor | None,
    initial_state: State | None,
    return_state: bool,
    epsilon: float,
    chunk_size: int,
) -> None:
    check_number("epsilon", epsilon)
    check_positive("chunk_size", chunk_size)
    two_sided = gate_logits is not None and not causal
    if two_sided and (initial_state is not None or return_state):
        raise ValueError(
            "Gated attention that is not causal also runs from the last step "
            "to the first, so it can neither take nor return a state. Pass "
            "`causal=True`, or leave out `initial_state` and `return_state`."
        )
