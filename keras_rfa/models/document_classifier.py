from typing import Any

import keras

from keras_rfa.layers import MaskedAveragePooling, TransformerDecoder
from keras_rfa.models.attention import AttentionBuilder
from keras_rfa.models.document_encoder import document_encoder
from keras_rfa.models.windowed_model import WindowedModel
from keras_rfa.ops.checks import check_positive


def document_classifier(
    vocabulary_size: int,
    num_classes: int,
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
    window: int | None = None,
    name: str = "document_classifier",
) -> keras.Model:
    """Builds a model from token ids to a score for each class.

    A `document_encoder`, the average over the tokens that are not padding,
    and a dense layer. Padding changes nothing, and a document without a token
    gets finite scores.

    Args:
        vocabulary_size: int. Number of token ids, padding included.
        num_classes: int. Number of classes.
        num_layers: int. Number of blocks.
        hidden_dim: int. Width of the vectors, a multiple of `num_heads`.
        num_heads: int. Heads of each attention.
        intermediate_dim: int. Hidden width of the feed-forward networks.
        attention: string or callable, as in `document_encoder`.
        attention_options: dict of further arguments of the attention layers.
        dropout: float. The share to drop, as in `document_encoder`, and of
            the averaged vector.
        causal: bool. Whether a token sees only those before it.
        convolution: int, as in `document_encoder`.
        window: int. The most tokens to read at once. A longer document is
            read in windows, each from the states that the one before has
            left, with the outputs and the gradients of reading it at once: the
            whole document counts, and the memory is that of one window. It
            needs `causal=True` and any attention but `"softmax"`. Weights
            do not depend on it: those of a model without it, or with another
            one, can be loaded.
        name: string. The name of the model.

    Returns:
        A Functional model: ids `(b, t)`, int32, 0 for padding, with `t` free,
        to logits `(b, num_classes)`, float32 whatever the dtype policy.

    Raises:
        ValueError: as `document_encoder`, and if `window` is not positive,
            or the attention is not causal or keeps no state to carry on.

    Example:

    >>> model = keras_rfa.models.document_classifier(
    ...     8000, 2, num_layers=1, hidden_dim=64, num_heads=4,
    ...     intermediate_dim=256)
    >>> model.compile(
    ...     "adam", keras.losses.SparseCategoricalCrossentropy(True))
    """
    num_classes = check_positive("num_classes", num_classes)
    encoder = document_encoder(
        vocabulary_size,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=num_heads,
        intermediate_dim=intermediate_dim,
        attention=attention,
        attention_options=attention_options,
        dropout=dropout,
        causal=causal,
        convolution=convolution,
    )
    # The encoder's own layers, not the model: its mask stays attached.
    x = MaskedAveragePooling(name="pooling")(encoder.output)
    x = keras.layers.Dropout(dropout, name="pooling_dropout")(x)
    logits = keras.layers.Dense(num_classes, dtype="float32", name="logits")(x)
    if window is None:
        return keras.Model(encoder.input, logits, name=name)
    if not causal:
        raise ValueError(
            "`window` needs `causal=True`: a window sees what was read before "
            f"it, and nothing after it. Received: window={window}, "
            "causal=False"
        )
    if not all(
        hasattr(layer.self_attention, "get_initial_state")
        for layer in encoder.layers
        if isinstance(layer, TransformerDecoder)
    ):
        raise ValueError(
            "`window` needs an attention that keeps a state, to go on from in "
            "the next window. Choose another attention, or leave out "
            f"`window`. Received: window={window}, attention={attention!r}"
        )
    return WindowedModel(encoder.input, logits, name=name, window=window)
