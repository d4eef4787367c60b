from typing import Any

import keras
from keras import ops

from keras_rfa.layers.key_padding import mask_of
from keras_rfa.layers.transformer_block import TransformerBlock, own_layers

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_rfa")
class TransformerEncoder(TransformerBlock):
    """A transformer encoder block around any attention layer.

    With `normalize_first`:

        x = x + dropout(attention(norm(x), norm(x)))
        x = x + dropout(feed_forward(norm(x)))

    Padded steps are neither attended to nor counted; their own outputs mean
    nothing. The mask goes on to the next layer.

    Args:
        attention: a layer called as `keras.layers.MultiHeadAttention` is,
            that one included.
        intermediate_dim: int. Hidden width of the feed-forward network.
        dropout: float. The share of each sublayer's output to drop.
        activation: Activation of the feed-forward network.
        normalize_first: bool. Whether to normalise what enters a sublayer
            rather than the sum that leaves it.
        layer_norm_epsilon: float. Epsilon of the normalisations.
        kernel_initializer: Initializer of the dense kernels.
        bias_initializer: Initializer of the biases.
        **kwargs: `name`, `dtype` and the like, for `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor of shape `(b, t, width)`.
        mask: bool tensor of shape `(b, t)`, `True` at real steps. Defaults to
            the mask of `inputs`.
        training: bool.
        initial_state: dict, the state that the attention layer returned for
            an earlier part of the sequence.
        return_state: bool. Whether to return the last state too.

    Output shape:
        As `inputs`; with `return_state` a pair of it and the state.

    Raises:
        ValueError: if `attention` is no layer or belongs to another block, or
            if a state is asked of one that keeps none.

    Example:

    >>> attention = keras_rfa.layers.RandomFeatureAttention(4, key_dim=16)
    >>> block = keras_rfa.layers.TransformerEncoder(attention, 256)
    >>> block(keras.random.normal((2, 1000, 64))).shape
    (2, 1000, 64)
    """

    def __init__(
        self,
        attention: Any,
        intermediate_dim: int,
        dropout: float = 0.0,
        activation: Any = "gelu",
        normalize_first: bool = True,
        layer_norm_epsilon: float = 1e-5,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            intermediate_dim,
            dropout,
            activation,
            normalize_first,
            layer_norm_epsilon,
            kernel_initializer,
            bias_initializer,
            **kwargs,
        )
        (self.attention,) = own_layers(self, attention=attention)

    def build(self, input_shape: Any) -> None:
        self.attention_norm = self.build_norm("attention", input_shape)
        self.build_attention(self.attention, input_shape, input_shape)
        self.build_feed_forward(input_shape)
        self.built = True

    def call(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        training: bool | None = None,
        initial_state: Any = None,
        return_state: bool = False,
    ) -> Any:
        mask = mask_of(inputs) if mask is None else mask
        x, state = self.attend(
            self.attention,
            self.attention_norm,
            ops.cast(inputs, self.compute_dtype),
            state=initial_state,
            return_state=return_state,
            training=training,
            query_mask=mask,
            value_mask=mask,
        )
        x = self.feed_forward(x, training)
        return (x, state) if return_state else x

    def get_initial_state(
        self, batch_size: Any, training: bool | None = None
    ) -> Any:
        """Returns the state of an attention that has read nothing."""
        self.check_state(self.attention)
        return self.attention.get_initial_state(batch_size, training)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def compute_output_spec(
        self, inputs: Any, *args: Any, return_state: bool = False, **kwargs: Any
    ) -> Any:
        outputs = keras.KerasTensor(inputs.shape, self.compute_dtype)
        if not return_state:
            return outputs
        return outputs, self.state_spec(self.attention, inputs)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "attention": keras.saving.serialize_keras_object(self.attention),
        }
