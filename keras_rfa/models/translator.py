from typing import Any

import keras
from keras import ops

from keras_rfa.layers import TransformerDecoder, TransformerEncoder
from keras_rfa.models.attention import AttentionBuilder
from keras_rfa.models.streaming_model import (
    State,
    StreamingModel,
    Tensor,
    without_indices,
)
from keras_rfa.models.token_layers import (
    blocks,
    check_sizes,
    embed,
    make_embedding,
)
from keras_rfa.ops.checks import check_shape

ROLES = ("encoder", "self", "cross")


@keras.saving.register_keras_serializable(package="keras_rfa")
class Translator(StreamingModel):
    """A Functional model that predicts the next token of a translation.

    `translator` builds it. It is trained, saved, plotted and quantised as any
    other model. To translate, the source is read once, by
    `get_initial_state`, and the target token by token.
    """

    def get_initial_state(
        self,
        source: Tensor,
        max_length: int | None = None,
        training: bool | None = False,
    ) -> State:
        """Reads the source, and returns the state of an empty target.

        Args:
            source: int tensor of shape `(b, s)`, 0 for padding.
            max_length: int. Steps of the target to make room for, padding
                included. Only softmax attention needs it.
            training: bool. Whether to drop, and to draw random matrices.

        Returns:
            dict, as `call_with_state` takes and gives it. Its size does not
            depend on the source, but for softmax attention.
        """
        source = ops.cast(ops.convert_to_tensor(source), "int32")
        check_shape("source", source, batch=None, steps=None)
        mask = ops.not_equal(source, 0)
        memory = source
        for layer in self.encoder_layers():
            options: dict[str, Any] = {"training": training}
            if isinstance(layer, TransformerEncoder):
                options["mask"] = mask
            memory = layer(memory, **options)
        state = self.empty_state(ops.shape(source)[0], max_length, training)
        for layer in self.decoder_layers():
            if isinstance(layer, TransformerDecoder):
                cross = self._encode(layer.cross_attention)(
                    memory, value_mask=mask, training=training
                )
                state[layer.name]["cross"] = cross
        return state if training else without_indices(state)

    def encoder_layers(self) -> list[Any]:
        """Returns the layers from source ids to the memory, in order."""
        return [self._embedding("source"), *self._named("encoder_")]

    def decoder_layers(self) -> list[Any]:
        embedding = self._embedding("target")
        logits = self.get_layer("logits")
        return [embedding, *self._named("decoder_"), embedding, logits]

    def _named(self, prefix: str) -> list[Any]:
        return [x for x in self.layers if x.name.startswith(prefix)]

    def _embedding(self, side: str) -> Any:
        names = (f"{side}_embedding", "embedding")
        return next(x for x in self.layers if x.name in names)

    def _encode(self, attention: Any) -> Any:
        if not hasattr(attention, "encode"):
            raise ValueError(
                f"{type(attention).__name__} can not read a memory once for "
                "all steps. The cross attention needs a method "
                "`encode(value, value_mask=, training=) -> state`, as "
                "`keras_rfa.layers.CrossRandomFeatureAttention` has."
            )
        return attention.encode


def translator(
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    num_layers: int,
    hidden_dim: int,
    num_heads: int,
    intermediate_dim: int,
    attention: str | AttentionBuilder | dict[str, Any] = "rfa",
    attention_options: dict[str, Any] | None = None,
    dropout: float = 0.1,
    share_embeddings: bool = False,
    normalize_first: bool = True,
    name: str = "translator",
) -> Translator:
    """Builds a model from a source and a target to the next target tokens.

    An encoder of `num_layers` blocks reads the source both ways. A decoder of
    as many causal blocks reads the target and sees what the encoder made of
    the source, and the weights of the target's embedding give the logits.
    Positions are sinusoidal. Ids are not checked inside of the compiled model;
    see `keras_rfa.models.check_token_ids`.

    Args:
        source_vocabulary_size: int. Number of source ids, padding included.
        target_vocabulary_size: int. Number of target ids, padding included.
        num_layers: int. Blocks of the encoder, and of the decoder.
        hidden_dim: int. Width of the vectors, a multiple of `num_heads`.
        num_heads: int. Heads of each attention.
        intermediate_dim: int. Hidden width of the feed-forward networks.
        attention: string or callable as in `language_model`, or a dict of one
            for each of the roles `"encoder"`, `"self"` and `"cross"`. Nothing
            is gated in the cross attention: there `"rfa_gated"` is `"rfa"`.
        attention_options: dict of further arguments of all attention layers,
            or a dict of such dicts by the role: the paper has more random
            features in the cross attention than elsewhere. A `"seed"` is that
            of the first block, and each further one has the next.
        dropout: float. The share to drop after the embeddings and at the end
            of each sublayer.
        share_embeddings: bool. Whether source and target have one vocabulary
            and one embedding.
        normalize_first: bool. Whether blocks normalise what enters a sublayer
            rather than the sum that leaves it.
        name: string. The name of the model.

    Returns:
        A `Translator`: a dict of ids `"source"` `(b, s)` and `"target"`
        `(b, t)`, int32, 0 for padding, to logits
        `(b, t, target_vocabulary_size)`, float32 whatever the dtype policy.
        The logits at a position are those of the token after it, so that a
        target begins with a start token.

    Raises:
        ValueError: for sizes that are not positive, a width that the heads do
            not divide, an attention that is unknown or not for its role, or
            shared embeddings of different vocabularies.

    Example:

    >>> model = keras_rfa.models.translator(
    ...     8000, 8000, num_layers=2, hidden_dim=64, num_heads=4,
    ...     intermediate_dim=256, share_embeddings=True)
    >>> state = model.get_initial_state([[5, 6, 7, 3]])
    >>> logits, state = model.call_with_state([[2]], state)

    References:

    - [Peng et al., 2021](https://arxiv.org/abs/2103.02143), section 4.2
    """
    check_sizes(
        hidden_dim,
        num_heads,
        source_vocabulary_size=source_vocabulary_size,
        target_vocabulary_size=target_vocabulary_size,
        num_layers=num_layers,
    )
    if share_embeddings and source_vocabulary_size != target_vocabulary_size:
        raise ValueError(
            "Shared embeddings need one vocabulary. Received: "
            f"source_vocabulary_size={source_vocabulary_size}, "
            f"target_vocabulary_size={target_vocabulary_size}"
        )
    attentions = _by_role(attention)
    options = _options_by_role(attention_options)
    ids = {
        side: keras.Input((None,), dtype="int32", name=side)
        for side in ("source", "target")
    }
    reversible = keras.layers.ReversibleEmbedding
    if share_embeddings:
        target_embedding = make_embedding(
            reversible, target_vocabulary_size, hidden_dim
        )
        source_embedding = target_embedding
    else:
        source_embedding = make_embedding(
            keras.layers.Embedding,
            source_vocabulary_size,
            hidden_dim,
            name="source_embedding",
        )
        target_embedding = make_embedding(
            reversible,
            target_vocabulary_size,
            hidden_dim,
            name="target_embedding",
        )
    block_arguments: dict[str, Any] = {
        "intermediate_dim": intermediate_dim,
        "dropout": dropout,
        "normalize_first": normalize_first,
    }
    memory = blocks(
        embed(ids["source"], source_embedding, dropout, prefix="encoder_"),
        num_layers,
        num_heads,
        {"encoder": attentions.pop("encoder")},
        options,
        causal=False,
        prefix="encoder_",
        **block_arguments,
    )
    x = blocks(
        embed(ids["target"], target_embedding, dropout, prefix="decoder_"),
        num_layers,
        num_heads,
        attentions,
        options,
        memory=memory,
        prefix="decoder_",
        **block_arguments,
    )
    x = target_embedding(x, reverse=True)
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")
    return Translator(ids, logits(x), name=name)


def _by_role(attention: Any) -> dict[str, Any]:
    if not isinstance(attention, dict):
        attention = dict.fromkeys(ROLES, attention)
        if isinstance(attention["cross"], str):
            attention["cross"] = attention["cross"].replace("_gated", "")
    if attention.keys() != set(ROLES):
        raise ValueError(
            f"`attention` must have one for each of the roles {ROLES}. "
            f"Received: {sorted(attention)}"
        )
    return {role: attention[role] for role in ROLES}


def _options_by_role(options: dict[str, Any] | None) -> dict[str, Any]:
    options = options or {}
    if options.keys() <= set(ROLES):
        return options
    return dict.fromkeys(ROLES, options)
