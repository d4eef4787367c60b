"""Attention layers by name, so that any two can stand in the same block."""

from collections.abc import Callable
from typing import Any

import keras

from keras_rfa.layers import (
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

    Args:
        attention: a name from the table, or a callable
            `(num_heads, key_dim, name, **options) -> layer`.
        num_heads: int. Number of heads.
        key_dim: int. Width of a head.
        name: string. The name of the layer.
        options: dict. Further arguments of the layer.

    Returns:
        A layer that is called as `keras.layers.MultiHeadAttention` is.

    Raises:
        ValueError: if the name is not in the table.
    """
    if isinstance(attention, str):
        if attention not in ATTENTIONS:
            raise ValueError(
                f"`attention` must be one of {sorted(ATTENTIONS)}, or a "
                "callable (num_heads, key_dim, name) -> layer. "
                f"Received: attention={attention!r}"
            )
        attention = ATTENTIONS[attention]
    return attention(num_heads, key_dim, name=name, **(options or {}))


def _with(layer: AttentionBuilder, feature_map: str) -> AttentionBuilder:
    def build(num_heads: int, key_dim: int, **options: Any) -> Any:
        options = {"feature_map": feature_map, **options}
        return layer(num_heads, key_dim, **options)

    return build


def _performer(
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
    build = _with(RandomFeatureAttention, "positive")
    return build(num_heads, key_dim, **options)


ATTENTIONS: dict[str, AttentionBuilder] = {
    "linear": _with(RandomFeatureAttention, "elu"),
    "performer": _performer,
    "rfa": _with(RandomFeatureAttention, "gaussian"),
    "rfa_arccos": _with(RandomFeatureAttention, "arccos"),
    "rfa_gated": _with(GatedRandomFeatureAttention, "gaussian"),
    "rfa_gated_arccos": _with(GatedRandomFeatureAttention, "arccos"),
    "softmax": keras.layers.MultiHeadAttention,
}
