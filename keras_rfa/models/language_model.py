from typing import Any

import keras

from keras_rfa.layers.carried_state import CarriedState
from keras_rfa.models.attention import AttentionBuilder
from keras_rfa.models.streaming_model import State, StreamingModel, Tensor
from keras_rfa.models.token_layers import (
    blocks,
    check_sizes,
    embed,
    make_embedding,
)
from keras_rfa.ops.checks import check_positive


@keras.saving.register_keras_serializable(package="keras_rfa")
class LanguageModel(StreamingModel):
    """A Functional model that predicts the next token at each position.

    `language_model` builds it. It is trained, saved, plotted and quantised as
    any other model, and can also go on from a state: that of linear attention
    has one size, whatever has been read.

    Args:
        *args: for `keras.Model`.
        stateful: bool. Whether a batch continues the rows of the batch before.
            `keras.models.clone_model` does not hand it on.
        **kwargs: for `keras.Model`.
    """

    def __init__(
        self, *args: Any, stateful: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.stateful = stateful
        if stateful:
            # Training and inference have random matrices of their own, and so
            # states of their own.
            rows = self._rows()
            self.training_state = CarriedState(
                self.get_initial_state(rows, training=True), rows
            )
            self.inference_state = CarriedState(
                self.get_initial_state(rows), rows
            )

    def call(
        self, inputs: Tensor, training: bool | None = None, mask: Any = None
    ) -> Tensor:
        if not self.stateful:
            return super().call(inputs, training=training, mask=mask)
        carried = self.training_state if training else self.inference_state
        (inputs,) = keras.tree.flatten(inputs)
        logits, state = self.call_with_state(inputs, carried.read(), training)
        carried.write(state)
        return logits

    def get_initial_state(
        self,
        batch_size: Any,
        max_length: int | None = None,
        training: bool | None = False,
    ) -> State:
        """Returns the state of a model that has read nothing.

        Args:
            batch_size: int. Rows of the batch, `b`.
            max_length: int. Steps to make room for, padding included. Only
                softmax attention needs it.
            training: bool. Whether to draw the random matrices that the calls
                from this state on use. The state then has their `"indices"`.

        Returns:
            dict, as `call_with_state` takes and gives it.
        """
        return self.empty_state(batch_size, max_length, training)

    def reset_state(self) -> None:
        """Begins new sequences in every row of a stateful model.

        It draws the random matrices that training uses until the next reset.
        Call it outside of compiled functions, or leave it to
        `keras_rfa.callbacks.ResetStates`.
        """
        if not self.stateful:
            raise ValueError(
                f"{self.name!r} carries no state. Build it with stateful=True."
            )
        rows = self._rows()
        self.training_state.write(self.get_initial_state(rows, training=True))
        self.inference_state.write(self.get_initial_state(rows))

    def decoder_layers(self) -> list[Any]:
        _, embedding, *layers, logits = self.layers
        return [embedding, *layers, embedding, logits]

    def _rows(self) -> int:
        return check_positive("batch_size", self.inputs[0].shape[0])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "stateful": self.stateful}


def language_model(
    vocabulary_size: int,
    *,
    num_layers: int,
    hidden_dim: int,
    num_heads: int,
    intermediate_dim: int,
    attention: str | AttentionBuilder = "rfa_gated",
    attention_options: dict[str, Any] | None = None,
    dropout: float = 0.1,
    convolution: int = 1,
    positions: bool | None = None,
    normalize_first: bool = True,
    stateful: bool = False,
    batch_size: int | None = None,
    name: str = "language_model",
) -> LanguageModel:
    """Builds a model from token ids to the logits of the next ones.

    Embeddings and positions, `num_layers` causal blocks, a last normalisation,
    and logits by the weights of the embedding. Ids are not
    checked inside of the compiled model; see
    `keras_rfa.models.check_token_ids`.

    Args:
        vocabulary_size: int. Number of token ids, padding included.
        num_layers: int. Number of blocks.
        hidden_dim: int. Width of the vectors, a multiple of `num_heads`.
        num_heads: int. Heads of each attention.
        intermediate_dim: int. Hidden width of the feed-forward networks.
        attention: string, one of `"rfa"`, `"rfa_arccos"`, `"rfa_gated"`,
            `"rfa_gated_arccos"`, `"performer"`, `"linear"`, `"softmax"` (with a
            cache, `CachedSoftmaxAttention`), or a callable
            `(num_heads, key_dim, name, **options) -> layer`.
        attention_options: dict of further arguments of the attention layers,
            such as `{"num_features": 128}`. A `"seed"` is that of the first
            block, and each further one has the next.
        dropout: float. The share to drop after the embeddings and at the end
            of each sublayer.
        convolution: int. Tokens that a `ShortConvolution` before the blocks
            joins, each with those just before it; 1 for no such layer.
        positions: bool. Whether to add sinusoidal positions. By default to all
            but the gated attentions: gates tell the order, and a model without
            positions reads on beyond the length that it was trained with.
        normalize_first: bool. Whether blocks normalise what enters a sublayer
            rather than the sum that leaves it.
        stateful: bool. Whether a batch continues the rows of the batch before,
            without a gradient through the state: `fit`, `evaluate` and
            `predict` then read sequences of any length in segments, as
            `keras_rfa.text.TokenRows` cuts them. It needs `batch_size`, and
            `keras_rfa.callbacks.ResetStates` or `reset_state()` where new
            sequences begin. Not with `"softmax"`, whose state grows.
        batch_size: int. The rows of every batch, if that is fixed.
        name: string. The name of the model.

    Returns:
        A `LanguageModel`: ids `(b, t)`, int32, 0 for padding, with `t` free,
        to logits `(b, t, vocabulary_size)`, float32 whatever the dtype policy.
        The logits at a position are those of the token after it.

    Raises:
        ValueError: for sizes that are not positive, a width that the heads do
            not divide, an unknown attention, or a stateful model without a
            batch size or of an attention whose state grows.

    Example:

    >>> model = keras_rfa.models.language_model(
    ...     257, num_layers=2, hidden_dim=64, num_heads=4,
    ...     intermediate_dim=256)
    >>> state = model.get_initial_state(batch_size=1)
    >>> logits, state = model.call_with_state([[5, 6, 7]], state)
    >>> logits, state = model.call_with_state([[8]], state)

    References:

    - [Peng et al., 2021](https://arxiv.org/abs/2103.02143), section 4.1
    """
    check_sizes(
        hidden_dim,
        num_heads,
        vocabulary_size=vocabulary_size,
        num_layers=num_layers,
        convolution=convolution,
    )
    if stateful and batch_size is None:
        raise ValueError(
            "A stateful model keeps a state for each row of a batch: pass "
            "`batch_size` too. Received: batch_size=None"
        )
    if stateful and attention == "softmax":
        raise ValueError(
            "A stateful model needs an attention whose state does not grow. "
            "Choose another one. Received: attention='softmax'"
        )
    if positions is None:
        positions = attention not in ("rfa_gated", "rfa_gated_arccos")
    ids = keras.Input(
        (None,), batch_size=batch_size, dtype="int32", name="token_ids"
    )
    embedding = make_embedding(
        keras.layers.ReversibleEmbedding, vocabulary_size, hidden_dim
    )
    x = embed(ids, embedding, dropout, convolution, positions)
    x = blocks(
        x,
        num_layers,
        num_heads,
        {"self": attention},
        {"self": attention_options},
        intermediate_dim=intermediate_dim,
        dropout=dropout,
        normalize_first=normalize_first,
    )
    x = embedding(x, reverse=True)
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")
    return LanguageModel(ids, logits(x), name=name, stateful=stateful)
