"""The attention map that linear attention never forms, for inspection."""

from typing import Any

from keras import ops

from keras_rfa.ops.checks import check_attention_shapes
from keras_rfa.ops.decays import log_gates
from keras_rfa.ops.state import SUM_DTYPE

Tensor = Any


def attention_weights(
    query_features: Tensor,
    key_features: Tensor,
    *,
    causal: bool = False,
    gate_logits: Tensor | None = None,
    key_mask: Tensor | None = None,
    key_weight: Tensor | None = None,
    epsilon: float = 1e-3,
) -> Tensor:
    """Computes the weight that each query gives to each key.

    `weights @ value` is the output of `linear_attention` with the same
    arguments and no initial state. Time and memory are quadratic in length.
    A weight can be negative where the estimate of a kernel is.

    Args:
        query_features: Tensor of shape `(b, t, h, m)`.
        key_features: Tensor of shape `(b, s, h, m)`.
        causal: bool. Whether a query sees the keys up to its own step only.
        gate_logits: Tensor of shape `(b, t, h)` or `None`.
        key_mask: bool tensor of shape `(b, s)` or `None`.
        key_weight: Tensor of shape `(b, s, h)` or `None`.
        epsilon: float. The floor of the denominator.

    Returns:
        Tensor of shape `(b, h, t, s)`, float32.

    Raises:
        ValueError: if the shapes do not fit.

    Example:

    >>> features = keras.ops.ones((1, 3, 1, 4))
    >>> keras_rfa.ops.attention_weights(features, features, causal=True)[0, 0]
    [[1, 0, 0], [1/2, 1/2, 0], [1/3, 1/3, 1/3]]
    """
    check_attention_shapes(
        query_features,
        key_features,
        None,
        gate_logits,
        key_mask,
        key_weight,
        causal,
    )
    q, k = (ops.cast(x, SUM_DTYPE) for x in (query_features, key_features))
    products = ops.einsum("bthm,bshm->bhts", q, k)
    step = ops.arange(ops.shape(q)[1], dtype="int32")
    key_step = ops.arange(ops.shape(k)[1], dtype="int32")
    # What is left of key s at step t, and how much of it entered.
    share = ops.ones_like(products)
    if gate_logits is not None:
        share = _decays(ops.cast(gate_logits, SUM_DTYPE), key_mask)
    if key_weight is not None:
        weight = ops.transpose(ops.cast(key_weight, SUM_DTYPE), (0, 2, 1))
        share = share * weight[:, :, None, :]
    if causal:
        share = ops.where(step[:, None] >= key_step[None, :], share, 0)
    if key_mask is not None:
        counts = ops.cast(key_mask, "bool")[:, None, None, :]
        share = ops.where(counts, share, 0)
    weights = products * share
    denominator = ops.sum(weights, axis=-1, keepdims=True)
    floor = epsilon * ops.sum(share, axis=-1, keepdims=True)
    denominator = ops.maximum(denominator, floor)
    return weights / ops.where(denominator > 0, denominator, 1)


def _decays(gate_logits: Tensor, key_mask: Tensor | None) -> Tensor:
    """`[t, s]`: `(1 - g_s)` times the gates on the way from `s` to `t`.

    To a later query those are `g_{s+1} ... g_t`, to an earlier one
    `g_t ... g_{s-1}`.
    """
    logits = ops.transpose(gate_logits, (0, 2, 1))  # (b, h, t)
    log_gate, log_entering = log_gates(logits)
    if key_mask is not None:
        counts = ops.cast(key_mask, "bool")[:, None, :]
        log_gate = ops.where(counts, log_gate, 0)
    up_to = ops.cumsum(log_gate, axis=-1)
    before = up_to - log_gate
    forward = up_to[..., :, None] - up_to[..., None, :]
    backward = before[..., None, :] - before[..., :, None]
    step = ops.arange(ops.shape(logits)[-1], dtype="int32")
    later = step[:, None] >= step[None, :]
    entered = log_entering[..., None, :]
    return ops.exp(ops.where(later, forward, backward) + entered)
