"""Linear attention: `φ(q)ᵀ S / φ(q)ᵀ z` in every form, from features."""

from typing import Any

from keras import ops

from keras_rfa.ops.attention_sums import (
    attention_sums,
    read_sums,
    state_of_keys,
)
from keras_rfa.ops.checks import check_attention_shapes, check_number
from keras_rfa.ops.state import State, check_state

Tensor = Any


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
    check_number("epsilon", epsilon)
    sums, state = attention_sums(
        query_features,
        key_features,
        value,
        causal=causal,
        gate_logits=gate_logits,
        key_mask=key_mask,
        key_weight=key_weight,
        initial_state=initial_state,
        return_state=return_state,
        chunk_size=chunk_size,
    )
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
    return read_sums(query_features, state).divide(epsilon)


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
    if initial_state is not None:
        batch, _, heads, width = key_features.shape
        check_state(initial_state, batch, heads, width, value.shape[-1])
    state = state_of_keys(key_features, value, key_mask, key_weight)
    if initial_state is not None:
        state = {name: initial_state[name] + state[name] for name in state}
    return state
