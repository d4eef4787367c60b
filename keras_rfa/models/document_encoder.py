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
    vocabulary_size = check_positive("vocabulary_size", vocabulary_size)
    num_layers = check_positive("num_layers", num_layers)
    hidden_dim = check_positive("hidden_dim", hidden_dim)
    num_heads = check_positive("num_heads", num_heads)
    convolution = check_positive("convolution", convolution)
    if hidden_dim % num_heads:
        raise ValueError(
            "`hidden_dim` must be a multiple of `num_heads`. "
            f"Received: hidden_dim={hidden_dim}, num_heads={num_heads}"
        )
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    # Small weights made larger: beside positions of size 1 tokens count from
    # the beginning, and steps of an optimizer like Adam reach far enough.
    x = keras.layers.Embedding(
        vocabulary_size,
        hidden_dim,
        mask_zero=True,
        embeddings_initializer=keras.initializers.RandomNormal(
            stddev=hidden_dim**-0.5
        ),
        name="embedding",
    )(ids)
    x = keras.layers.Rescaling(hidden_dim**0.5, name="embedding_scale")(x)
    x = SinusoidalPositions(name="positions")(x)
    x = keras.layers.Dropout(dropout, name="embedding_dropout")(x)
    if convolution > 1:
        x = ShortConvolution(convolution, name="convolution")(x)
    block = TransformerDecoder if causal else TransformerEncoder
    for i in range(num_layers):
        options = dict(attention_options or {})
        if options.get("seed") is not None:  # not the same draws in each
            options["seed"] += i
        x = block(
            make_attention(
                attention,
                num_heads,
                hidden_dim // num_heads,
                name="attention",
                options=options,
            ),
            intermediate_dim,
            dropout=dropout,
            name=f"block_{i}",
        )(x)
    x = keras.layers.LayerNormalization(epsilon=1e-5, name="norm")(x)
    return keras.Model(ids, x, name=name)
