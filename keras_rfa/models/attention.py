"""Attention layers by name, so that any two can stand in the same block."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from keras_rfa.layers import (
    CachedSoftmaxAttention,
    CrossRandomFeatureAttention,
    GatedRandomFeatureAttention,
    RandomFeatureAttention,
    RandomProjectionPool,
)

AttentionBuilder = Callable[..., keras.layers.Layer]


def make_attention(
    attention: str | AttentionBuilder,
    num_heads: int,
    key_dim: int,
    name: str,
    options: dict[str, Any] | None = None,
    role: str = "encoder",
) -> keras.layers.Layer:
    """Builds the attention layer of a block.

    | name                 | layer                                             |
    | -------------------- | ------------------------------------------------- |
    | `"rfa"`              | `RandomFeatureAttention`, gaussian                |
    | `"rfa_arccos"`       | `RandomFeatureAttention`, arc-cosine              |
    | `"rfa_gated"`        | `GatedRandomFeatureAttention`, gaussian           |
    | `"rfa_gated_arccos"` | `GatedRandomFeatureAttention`, arc-cosine         |
    | `"performer"`        | `RandomFeatureAttention`, positive and orthogonal |
    | `"linear"`           | `RandomFeatureAttention`, elu + 1                 |
    | `"softmax"`          | `keras.layers.MultiHeadAttention`                 |

    The layers of the role `"self"`, in a decoder, keep a state: there
    `"softmax"` is `CachedSoftmaxAttention`, and in the role `"cross"`, where
    nothing is gated, `CrossRandomFeatureAttention` stands for
    `RandomFeatureAttention`.

    Args:
        attention: a name from the table, or a callable
            `(num_heads, key_dim, name, **options) -> layer`.
        num_heads: int. Number of heads.
        key_dim: int. Width of a head.
        name: string. The name of the layer.
        options: dict. Further arguments of the layer.
        role: string, one of `"encoder"`, `"self"` and `"cross"`.

    Returns:
        A layer that is called as `keras.layers.MultiHeadAttention` is.

    Raises:
        ValueError: if the name is not in the table, or not for the role.
    """
    if isinstance(attention, str):
        names = ROLES[role]
        if attention not in names:
            raise ValueError(
                f"`attention` must be one of {sorted(names)} in the role "
                f"{role!r}, or a callable (num_heads, key_dim, name) -> layer. "
                f"Received: attention={attention!r}"
            )
        attention = names[attention]
    return attention(num_heads, key_dim, name=name, **(options or {}))


def _with(layer: AttentionBuilder, feature_map: str) -> AttentionBuilder:
    def build(num_heads: int, key_dim: int, **options: Any) -> Any:
        options = {"feature_map": feature_map, **options}
        return layer(num_heads, key_dim, **options)

    return build


def _performer(
    layer: AttentionBuilder,
    num_heads: int,
    key_dim: int,
    num_features: int = 64,
    seed: int | None = None,
    **options: Any,
) -> Any:
    pool = RandomProjectionPool(
        num_heads, num_features, key_dim, orthogonal=True, seed=seed
    )
    options = {"projection_pool": pool, "seed": seed, **options}
    build = _with(layer, "positive")
    return build(num_heads, key_dim, **options)


def _ungated(layer: AttentionBuilder) -> dict[str, AttentionBuilder]:
    return {
        "linear": _with(layer, "elu"),
        "performer": functools.partial(_performer, layer),
        "rfa": _with(layer, "gaussian"),
        "rfa_arccos": _with(layer, "arccos"),
    }


_GATED = {
    "rfa_gated": _with(GatedRandomFeatureAttention, "gaussian"),
    "rfa_gated_arccos": _with(GatedRandomFeatureAttention, "arccos"),
}
ATTENTIONS: dict[str, AttentionBuilder] = {
    **_ungated(RandomFeatureAttention),
    **_GATED,
    "softmax": keras.layers.MultiHeadAttention,
}
ROLES: dict[str, dict[str, AttentionBuilder]] = {
    "encoder": ATTENTIONS,
    "self": {**ATTENTIONS, "softmax": CachedSoftmaxAttention},
    "cross": {
        **_ungated(CrossRandomFeatureAttention),
        "softmax": CachedSoftmaxAttention,
    },
}
