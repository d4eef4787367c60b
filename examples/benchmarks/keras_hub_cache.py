"""Softmax attention as keras-hub decodes, and as one decodes without a cache.

Both can be called, and read a sequence in parts, as the layers and models of
`keras_rfa` are, so that one program measures all of them.
"""

from typing import Any

import keras
import keras_hub
from keras import ops

Tensor = Any
State = dict[str, Tensor]


class KerasHubAttention(keras.layers.Layer):
    """`keras_hub.layers.CachedMultiHeadAttention` with the calls used here.

    The state is keras-hub's cache `(b, 2, slots, h, d)` and, for attention to
    the sequence itself, the slots that are taken, equal in all rows. As where
    keras-hub generates, no padding is looked for.

    Args:
        num_heads: int. Number of heads, `h`.
        key_dim: int. Width of a head, `d`.
        **kwargs: `name` and the like, for `keras.layers.Layer`.
    """

    def __init__(self, num_heads: int, key_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.attention = keras_hub.layers.CachedMultiHeadAttention(
            num_heads, key_dim, name="attention"
        )
        self.cache_shape = num_heads, key_dim

    def build(self, query_shape: Any, value_shape: Any = None) -> None:
        """Creates the weights."""
        attention = self.attention
        attention.build(query_shape, value_shape or query_shape)
        for name in ("query_dense", "key_dense", "value_dense"):
            # Without this they warn of lost masks, which are not used.
            getattr(attention, name).supports_masking = True
        self.built = True

    def call(
        self,
        query: Tensor,
        value: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        training: bool | None = None,
        use_causal_mask: bool = False,
        initial_state: State | None = None,
        return_state: bool = False,
    ) -> Any:
        """Attends, from a state if there is one."""
        if initial_state is None:
            visible = None
            if use_causal_mask:
                visible = _earlier(query.shape[1], query.shape[1], 0)
            return self.attention(query, value, attention_mask=visible)
        if value is None:
            outputs, _ = self.attention(
                query, query, cache=initial_state["cache"]
            )
            return (outputs, initial_state) if return_state else outputs
        cache, first = initial_state["cache"], initial_state["index"][0]
        steps = query.shape[1]
        outputs, cache = self.attention(
            query,
            value,
            attention_mask=_earlier(steps, cache.shape[2], first),
            cache=cache,
            cache_update_index=first,
        )
        state = {"cache": cache, "index": initial_state["index"] + steps}
        return (outputs, state) if return_state else outputs

    def encode(
        self,
        value: Tensor,
        value_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> State:
        """Returns the keys and values of a memory."""
        key = self.attention.key_dense(value)
        return {"cache": ops.stack([key, self.attention.value_dense(value)], 1)}

    def get_initial_state(
        self, batch_size: int, training: bool | None, max_length: int
    ) -> State:
        """Returns an empty cache."""
        shape = batch_size, 2, max_length, *self.cache_shape
        return {
            "cache": ops.zeros(shape, self.compute_dtype),
            "index": ops.zeros((batch_size,), "int32"),
        }

    def compute_output_spec(
        self, query: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """Returns the shape and dtype of the outputs."""
        return keras.KerasTensor(query.shape, self.compute_dtype)


class WithoutCache(keras.Model):
    """A language model that computes the whole sequence for each token.

    The state is the token ids, padded to the length to which they will grow.
    Of the last position alone the logits are computed.

    Args:
        model: what `keras_rfa.models.language_model` returns.
    """

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.hidden = keras.Model(model.inputs, model.get_layer("norm").output)
        self.embedding = model.get_layer("embedding")

    def get_initial_state(self, batch_size: int, max_length: int) -> State:
        """Returns a sequence of padding."""
        return {
            "ids": ops.zeros((batch_size, max_length), "int32"),
            "index": ops.zeros((batch_size,), "int32"),
        }

    def call_with_state(
        self, token_ids: Tensor, state: State, training: bool = False
    ) -> tuple[Tensor, State]:
        """Returns the logits at the last token, and the longer sequence."""
        first, steps = state["index"][0], token_ids.shape[1]
        ids = ops.slice_update(state["ids"], (0, first), token_ids)
        x = self.hidden(ids, training=training)
        last = ops.slice(
            x, (0, first + steps - 1, 0), (x.shape[0], 1, x.shape[2])
        )
        logits = self.embedding(last, reverse=True)
        return logits, {"ids": ids, "index": state["index"] + steps}


def _earlier(steps: int, slots: int, first: Any) -> Tensor:
    """Tells, `(1, t, slots)`, what is not after queries from `first` on."""
    queries = ops.arange(steps, dtype="int32") + first
    return ops.arange(slots, dtype="int32") <= queries[None, :, None]
