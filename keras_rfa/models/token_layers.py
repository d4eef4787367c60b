"""The layers that every model of tokens has, from ids to vectors."""

from typing import Any

import keras

from keras_rfa.layers import (
    ShortConvolution,
    SinusoidalPositions,
    TransformerDecoder,
    TransformerEncoder,
)
from keras_rfa.models.attention import AttentionBuilder, make_attention
from keras_rfa.ops.checks import check_positive

Tensor = Any


def check_sizes(hidden_dim: int, num_heads: int, **sizes: int) -> None:
    """Raises a `ValueError` unless sizes are positive and heads divide."""
    for name, size in {
        "hidden_dim": hidden_dim,
        "num_heads": num_heads,
        **sizes,
    }.items():
        check_positive(name, size)
    if hidden_dim % num_heads:
        raise ValueError(
            "`hidden_dim` must be a multiple of `num_heads`. "
            f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}"
        )


def make_embedding(
    layer: type[keras.layers.Embedding],
    vocabulary_size: int,
    hidden_dim: int,
    name: str = "embedding",
) -> keras.layers.Embedding:
    """Returns a layer from ids to vectors; 0 is padding.

    The weights are small, and `embed` makes the vectors larger: beside
    positions of size 1 tokens count from the beginning, steps of an optimizer
    like Adam reach far enough, and logits that the same weights give begin
    near 0.
    """
    initializer = keras.initializers.RandomNormal(stddev=hidden_dim**-0.5)
    return layer(
        int(vocabulary_size),
        int(hidden_dim),
        mask_zero=True,
        embeddings_initializer=initializer,
        name=name,
    )


def embed(
    ids: Tensor,
    embedding: keras.layers.Embedding,
    dropout: float,
    convolution: int = 1,
    positions: bool = True,
    prefix: str = "",
) -> Tensor:
    """Returns vectors of tokens, with their positions and neighbours."""
    scale = embedding.output_dim**0.5
    x = embedding(ids)
    x = keras.layers.Rescaling(scale, name=f"{prefix}embedding_scale")(x)
    if positions:
        x = SinusoidalPositions(name=f"{prefix}positions")(x)
    x = keras.layers.Dropout(dropout, name=f"{prefix}embedding_dropout")(x)
    if convolution > 1:
        x = ShortConvolution(convolution, name=f"{prefix}convolution")(x)
    return x


def blocks(
    x: Tensor,
    num_layers: int,
    num_heads: int,
    attentions: dict[str, str | AttentionBuilder],
    options: dict[str, dict[str, Any] | None],
    causal: bool = True,
    memory: Tensor | None = None,
    prefix: str = "",
    **arguments: Any,
) -> Tensor:
    """Returns what transformer blocks make of vectors, normalised.

    Args:
        x: vectors `(b, t, width)`.
        num_layers: int. Number of blocks.
        num_heads: int. Heads of each attention.
        attentions: the attention for each role in a block: one of the
            sequence to itself and, with a memory, `"cross"`.
        options: further arguments of the attention layers, by the role.
        causal: bool. Whether a step sees only those before it.
        memory: vectors `(b, s, width)` that a decoder sees.
        prefix: string, the beginning of the names of the layers.
        **arguments: of the blocks.
    """
    for i in range(num_layers):
        itself, *cross = (
            make_attention(
                attention,
                num_heads,
                x.shape[-1] // num_heads,
                name="cross_attention" if role == "cross" else "attention",
                options=_of_block(i, options.get(role)),
                role=role,
            )
            for role, attention in attentions.items()
        )
        arguments["name"] = f"{prefix}block_{i}"
        if causal:
            further = {"cross_attention": cross[0]} if cross else {}
            block = TransformerDecoder(itself, **further, **arguments)
        else:
            block = TransformerEncoder(itself, **arguments)
        x = block(x) if memory is None else block(x, memory)
    if not arguments.get("normalize_first", True):
        return x  # as the last block leaves it
    return keras.layers.LayerNormalization(epsilon=1e-5, name=f"{prefix}norm")(
        x
    )


def _of_block(index: int, options: dict[str, Any] | None) -> dict[str, Any]:
    """Returns options with a seed of the block's own, if with any."""
    options = dict(options or {})
    if options.get("seed") is not None:  # not the same draws in each block
        options["seed"] += index
    return options
