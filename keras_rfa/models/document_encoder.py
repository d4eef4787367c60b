from typing import Any

import keras

from keras_rfa.models.attention import AttentionBuilder
from keras_rfa.models.token_layers import (
    blocks,
    check_sizes,
    embed,
    make_embedding,
)


def document_encoder(
    vocabulary_size: int,
    *,
    num_layers: int,
    hidden_dim: int,
    num_heads: int,
    intermediate_dim: int,
    attention: str | AttentionBuilder = "rfa",
    attention_options: dict[str, Any] | None = None,
    dropout: float = 0.1,
    causal: bool = False,
    convolution: int = 1,
    name: str = "document_encoder",
) -> keras.Model:
    """Builds a model from token ids to a vector for each token.

    Embeddings and sinusoidal positions, `num_layers` blocks, and a last
    normalisation. The output carries the mask of the padding. Ids are not
    checked inside of the compiled model; see
    `keras_rfa.models.check_token_ids`.

    Args:
        vocabulary_size: int. Number of token ids, padding included.
        num_layers: int. Number of blocks.
        hidden_dim: int. Width of the vectors, a multiple of `num_heads`.
        num_heads: int. Heads of each attention.
        intermediate_dim: int. Hidden width of the feed-forward networks.
        attention: string, one of `"rfa"`, `"rfa_arccos"`, `"rfa_gated"`,
            `"rfa_gated_arccos"`, `"performer"`, `"linear"`, `"softmax"`, or a
            callable `(num_heads, key_dim, name, **options) -> layer`.
        attention_options: dict of further arguments of the attention layers,
            such as `{"num_features": 128}`. A `"seed"` is that of the first
            block, and each further one has the next.
        dropout: float. The share to drop after the embeddings and at the end
            of each sublayer.
        causal: bool. Whether a token sees only those before it, as in blocks
            of `TransformerDecoder` in the place of `TransformerEncoder`.
        convolution: int. Tokens that a `ShortConvolution` before the blocks
            joins, each with those just before it; 1 for no such layer. With
            it short phrases count, which linear attention alone hardly tells
            from their words.
        name: string. The name of the model.

    Returns:
        A Functional model: ids `(b, t)`, int32, 0 for padding, with `t` free,
        to vectors `(b, t, hidden_dim)` in the compute dtype.

    Raises:
        ValueError: for sizes that are not positive, a width that the heads do
            not divide, or an unknown attention.

    Example:

    >>> model = keras_rfa.models.document_encoder(
    ...     8000, num_layers=2, hidden_dim=64, num_heads=4,
    ...     intermediate_dim=256)
    >>> model(keras.ops.ones((2, 1000), "int32")).shape
    (2, 1000, 64)
    """
    check_sizes(
        hidden_dim,
        num_heads,
        vocabulary_size=vocabulary_size,
        num_layers=num_layers,
        convolution=convolution,
    )
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    embedding = make_embedding(
        keras.layers.Embedding, vocabulary_size, hidden_dim
    )
    x = embed(ids, embedding, dropout, convolution)
    x = blocks(
        x,
        num_layers,
        num_heads,
        {"encoder": attention},
        {"encoder": attention_options},
        causal=causal,
        intermediate_dim=intermediate_dim,
        dropout=dropout,
    )
    return keras.Model(ids, x, name=name)
