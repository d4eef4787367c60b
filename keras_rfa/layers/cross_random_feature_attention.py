from typing import Any

import keras

from keras_rfa.layers.key_padding import key_padding, mask_of
from keras_rfa.layers.random_feature_attention import RandomFeatureAttention
from keras_rfa.layers.rematerialization import rematerialized
from keras_rfa.ops import encode_state
from keras_rfa.ops.attention_sums import heads_last

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_rfa")
class CrossRandomFeatureAttention(RandomFeatureAttention):
    """Random feature attention from one sequence to another.

    The other sequence, such as the output of an encoder, is compressed once,
    to a state whose size does not depend on its length:

        S = Σ φ(k_s) v_sᵀ      z = Σ φ(k_s)      o_t = φ(q_t)ᵀ S / φ(q_t)·z

    `layer(query, memory)` does both. A decoder calls `encode(memory)` once
    and then `layer(query, initial_state=state)` at each step. Arguments and
    states are those of `RandomFeatureAttention`.

    Args:
        num_heads, key_dim, ..., seed, **kwargs: as in
            `RandomFeatureAttention`.

    Raises:
        ValueError: as in `RandomFeatureAttention`, and for
            `use_causal_mask=True`, which means nothing between sequences.

    Example:

    >>> query = keras.random.normal((2, 10, 64))
    >>> memory = keras.random.normal((2, 1000, 32))
    >>> layer = keras_rfa.layers.CrossRandomFeatureAttention(4, key_dim=16)
    >>> output = layer(query, memory)
    >>> state = layer.encode(memory)
    >>> step = layer(query[:, :1], initial_state=state)  # output[:, :1]

    References:

    - [Peng et al., 2021](https://arxiv.org/abs/2103.02143), section 3.3
    """

    def build(
        self, query_shape: Any, value_shape: Any = None, key_shape: Any = None
    ) -> None:
        if value_shape is None:
            raise ValueError(
                f"{self.name!r} must first be called with a memory, or built "
                "by `build(query_shape, value_shape)`: its weights depend on "
                "the width of the memory. Received: value_shape=None"
            )
        super().build(query_shape, value_shape, key_shape)

    def encode(
        self,
        value: Tensor,
        key: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> dict[str, Tensor]:
        """Compresses a memory to a state.

        Args:
            value: Tensor of shape `(b, s, value_width)`.
            key: Tensor of shape `(b, s, key_width)`. Defaults to `value`.
            value_mask: bool tensor of shape `(b, s)`. Defaults to the mask of
                `value`.
            key_mask: bool tensor of shape `(b, s)`. Defaults to the mask of
                `key`.
            training: bool. Whether to draw matrices. It is not taken from the
                call around it, as that of a layer is.

        Returns:
            dict, as `return_state=True` gives it.

        Raises:
            ValueError: if the layer has not been built, or for the symbolic
                tensors of a Functional model.

        Example:

        >>> state = layer.encode(memory)
        >>> output = layer(query, initial_state=state)
        """
        if isinstance(value, keras.KerasTensor):
            raise ValueError(
                "`encode` is no layer of a Functional model. Call the layer "
                "itself, `layer(query, memory)`, or call `encode` in a layer "
                f"of your own. Received: value={value}"
            )
        if not self.built:
            raise ValueError(
                f"{self.name!r} must be built before it encodes a memory: its "
                "weights depend on the width of queries too. Call it once, or "
                "call `build(query_shape, value_shape)`."
            )
        # Keras fills masks in calls of the layer only.
        value_mask = mask_of(value) if value_mask is None else value_mask
        key_mask = mask_of(key) if key_mask is None else key_mask
        key_mask = key_padding(value, value_mask, key_mask)
        indices = self.features.draw(training)
        inputs = {
            **self._memory(value, key, key_mask),
            **self.features.matrices(indices),
        }

        def encode(x: dict[str, Tensor]) -> dict[str, Tensor]:
            key_features, key_weight = self._map("k", x)
            return encode_state(
                key_features,
                heads_last(x["v"]),
                key_mask=x.get("key_mask"),
                key_weight=key_weight,
            )

        state = rematerialized(encode, inputs, training)
        return state if indices is None else {**state, "indices": indices}

    def check_call(self, query: Any, value: Any, **options: Any) -> None:
        if options.get("use_causal_mask"):
            raise ValueError(
                "`use_causal_mask=True` means nothing between two sequences. "
                "For a sequence and itself use RandomFeatureAttention."
            )
        super().check_call(query, value, **options)
