"""What the attention layers compute, in float64, one step after another.

It follows the formulas of the documentation and nothing of the code: no
chunks, no matrix products over time, no backend.
"""

from typing import Any

import numpy as np
from keras import ops

Array = Any
State = dict[str, Array]


def feature_map_reference(
    x: Array,
    projection: Array | None = None,
    kind: str = "gaussian",
    normalize: bool = True,
    scale: Array | None = None,
) -> Array:
    """Maps `(b, t, h, d)` to features as `keras_rfa.ops.feature_map` does."""
    x = np.asarray(x, "float64")
    if kind == "elu":
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
    matrix = np.asarray(projection, "float64")
    if kind in ("gaussian", "arccos") and normalize:
        length = np.linalg.norm(x, axis=-1, keepdims=True)
        x = np.divide(x, length, out=np.zeros_like(x), where=length > 0)
    if scale is not None:
        x = x * np.asarray(scale, "float64")
    if kind == "positive":
        x = x / x.shape[-1] ** 0.25
    projected = np.stack(
        [x[:, :, i] @ matrix[i].T for i in range(x.shape[2])], axis=2
    )
    half_square = (x**2).sum(axis=-1, keepdims=True) / 2
    if kind == "positive":
        features = np.exp(projected - half_square)
    elif kind == "arccos":
        features = np.maximum(projected, 0)
    else:
        features = np.concatenate([np.sin(projected), np.cos(projected)], -1)
        if not normalize:
            features = features * np.exp(half_square)
    return features / np.sqrt(matrix.shape[1])


def linear_attention_reference(
    query_features: Array,
    key_features: Array,
    value: Array,
    *,
    causal: bool = False,
    gate_logits: Array | None = None,
    key_mask: Array | None = None,
    key_weight: Array | None = None,
    initial_state: State | None = None,
    epsilon: float = 1e-3,
) -> tuple[Array, State]:
    """Computes outputs and last state as `ops.linear_attention` does."""
    q, k, v = (
        np.asarray(x, "float64") for x in (query_features, key_features, value)
    )
    batch, steps, heads, width = k.shape
    real = np.ones((batch, steps), bool)
    if key_mask is not None:
        real = np.asarray(key_mask, bool)
    keep, enter = np.ones((2, batch, steps, heads))
    if gate_logits is not None:
        logits = np.asarray(gate_logits, "float64")
        keep = np.exp(-np.logaddexp(0, -logits))
        enter = np.exp(-np.logaddexp(0, logits))
    if key_weight is not None:
        enter = enter * np.asarray(key_weight, "float64")
    keep = np.where(real[:, :, None], keep, 1)
    enter = np.where(real[:, :, None], enter, 0)
    k, v = (np.where(real[:, :, None, None], x, 0) for x in (k, v))

    def term(i: int) -> State:
        entering = enter[:, i, :, None] * k[:, i]
        return {
            "s": entering[..., None] * v[:, i, :, None, :],
            "z": entering,
            "weight": enter[:, i],
        }

    def forget(state: State, i: int) -> State:
        gate = keep[:, i]
        return {
            name: x * gate.reshape(gate.shape + (1,) * (x.ndim - 2))
            for name, x in state.items()
        }

    def plus(a: State, b: State) -> State:
        return {name: a[name] + b[name] for name in a}

    def read(query: Array, state: State) -> Array:
        numerator = np.einsum("bhm,bhme->bhe", query, state["s"])
        denominator = np.einsum("bhm,bhm->bh", query, state["z"])
        denominator = np.maximum(denominator, epsilon * state["weight"])
        denominator = np.where(denominator > 0, denominator, 1)
        return numerator / denominator[..., None]

    nothing = {
        "s": np.zeros((batch, heads, width, v.shape[-1])),
        "z": np.zeros((batch, heads, width)),
        "weight": np.zeros((batch, heads)),
    }
    state = nothing
    if initial_state is not None:
        state = {
            name: np.asarray(initial_state[name], "float64") for name in nothing
        }
    seen = []  # by the query of each step
    for i in range(steps):
        state = plus(forget(state, i), term(i))
        seen.append(state)
    if gate_logits is not None and not causal:
        later = nothing
        for i in reversed(range(steps)):
            later = forget(later, i)
            seen[i] = plus(seen[i], later)
            later = plus(later, term(i))
    elif not causal:
        seen = [state] * q.shape[1]
    outputs = [read(q[:, i], state) for i, state in enumerate(seen)]
    return np.stack(outputs, axis=1), state


def attention_reference(
    layer: Any,
    query: Array,
    value: Array,
    *,
    causal: bool = False,
    key_mask: Array | None = None,
) -> Array:
    """Computes the outputs of an attention layer of `keras_rfa` at inference.

    The weights are taken from the layer. So are the features of a map that
    has no name; whatever follows them is computed here.

    Args:
        layer: a built `RandomFeatureAttention` or one of its subclasses.
        query: array of shape `(b, t, query_width)`.
        value: array of shape `(b, s, value_width)`.
        causal: bool. Whether a query sees the keys up to its step only.
        key_mask: bool array of shape `(b, s)`.

    Returns:
        float64 array of shape `(b, t, output_width)`.
    """
    query, value = np.asarray(query, "float64"), np.asarray(value, "float64")
    gate_logits = None
    if hasattr(layer, "gate_dense"):
        gate_logits = _dense(layer.gate_dense, value, 1)
    q = _features(layer.features, _dense(layer.query_dense, query, 1))
    k = _features(layer.features, _dense(layer.key_dense, value, 1))
    key_weight = None
    if layer.features.feature_map == "gaussian":
        # Their lengths are the factors C, 1 where inputs are normalised.
        q = q / np.linalg.norm(q, axis=-1, keepdims=True)
        key_weight = np.linalg.norm(k, axis=-1)
        k = k / key_weight[..., None]
        key_weight = np.minimum(key_weight, np.exp(30))
    outputs, _ = linear_attention_reference(
        q,
        k,
        _dense(layer.value_dense, value, 1),
        causal=causal,
        gate_logits=gate_logits,
        key_mask=key_mask,
        key_weight=key_weight,
        epsilon=layer.epsilon,
    )
    return _dense(layer.output_dense, outputs, 2)


def _dense(dense: Any, x: Array, axes: int) -> Array:
    outputs = np.tensordot(x, _numpy(dense.kernel), axes)
    return outputs if dense.bias is None else outputs + _numpy(dense.bias)


def _features(features: Any, x: Array) -> Array:
    if features.pool is None:
        return feature_map_reference(x, kind=features.feature_map)
    projection = _numpy(features.pool.projection)
    sigma = _numpy(features.sigma)
    if isinstance(features.feature_map, str):
        return feature_map_reference(
            x,
            projection,
            features.feature_map,
            features.normalize_inputs,
            sigma,
        )
    tensors = [
        ops.convert_to_tensor(array, "float32")
        for array in (x, projection * sigma[:, None, :])
    ]
    return _numpy(features.feature_map(*tensors))


def _numpy(variable: Any) -> Array:
    return ops.convert_to_numpy(variable).astype("float64")
