import inspect
from typing import Any

import keras
from keras import ops

from keras_rfa.layers.key_padding import mask_of
from keras_rfa.layers.transformer_block import TransformerBlock, own_layers

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_rfa")
class TransformerDecoder(TransformerBlock):
    """A causal transformer block around any attention layers.

    With `normalize_first`:

        x = x + dropout(self_attention(norm(x), norm(x), causal))
        x = x + dropout(cross_attention(norm(x), memory))
        x = x + dropout(feed_forward(norm(x)))

    where the second line is there only with a `cross_attention`. Without one
    it is the block of a language model.

    Args:
        self_attention: a layer called as `keras.layers.MultiHeadAttention`
            is, that one included.
        intermediate_dim: int. Hidden width of the feed-forward network.
        cross_attention: a layer called likewise, from the sequence to the
            memory.
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
        memory: Tensor of shape `(b, s, memory_width)`, what the cross
            attention sees. Not needed where the state has it.
        mask: bool tensor of shape `(b, t)`, `True` at real steps. Defaults to
            the mask of `inputs`.
        memory_mask: bool tensor of shape `(b, s)`. Defaults to the mask of
            `memory`.
        training: bool.
        initial_state: dict `{"self": ..., "cross": ...}` of the states of
            the attention layers; either may be missing. `"cross"` is what
            `cross_attention.encode(memory)` gives.
        return_state: bool. Whether to return the last states too.

    Output shape:
        As `inputs`; with `return_state` a pair of it and the states.

    Raises:
        ValueError: if an attention is no layer or belongs to another block, if
            a state is asked of one that keeps none, or if the memory is
            missing, given twice, or of no use.

    Example:

    >>> attention = keras_rfa.layers.GatedRandomFeatureAttention(4, 16)
    >>> block = keras_rfa.layers.TransformerDecoder(attention, 256)
    >>> x = keras.random.normal((2, 1000, 64))
    >>> first, state = block(x[:, :900], return_state=True)
    >>> rest = block(x[:, 900:], initial_state=state)
    """

    def __init__(
        self,
        self_attention: Any,
        intermediate_dim: int,
        cross_attention: Any = None,
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
        attentions = {"self_attention": self_attention}
        if cross_attention is not None:
            attentions["cross_attention"] = cross_attention
        self.self_attention, *cross = own_layers(self, **attentions)
        self.cross_attention = cross[0] if cross else None

    def build(self, inputs_shape: Any, memory_shape: Any = None) -> None:
        self.self_attention_norm = self.build_norm(
            "self_attention", inputs_shape
        )
        self.build_attention(self.self_attention, inputs_shape, inputs_shape)
        if self.cross_attention is not None:
            if memory_shape is None and not self.cross_attention.built:
                raise ValueError(
                    "A decoder with cross attention must first be called, or "
                    "built, with a memory: its weights depend on the width "
                    "of the memory."
                )
            self.cross_attention_norm = self.build_norm(
                "cross_attention", inputs_shape
            )
            self.build_attention(
                self.cross_attention, inputs_shape, memory_shape
            )
        self.build_feed_forward(inputs_shape)
        self.built = True

    def call(
        self,
        inputs: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        training: bool | None = None,
        initial_state: Any = None,
        return_state: bool = False,
    ) -> Any:
        states = dict(initial_state or {})
        self._check_memory(memory, states)
        mask = mask_of(inputs) if mask is None else mask
        x, states["self"] = self.attend(
            self.self_attention,
            self.self_attention_norm,
            ops.cast(inputs, self.compute_dtype),
            state=states.get("self"),
            return_state=return_state,
            training=training,
            query_mask=mask,
            value_mask=mask,
            use_causal_mask=True,
        )
        if self.cross_attention is not None:
            if memory is not None and memory_mask is None:
                memory_mask = mask_of(memory)
            x, states["cross"] = self.attend(
                self.cross_attention,
                self.cross_attention_norm,
                x,
                memory,
                itself=False,
                state=states.get("cross"),
                return_state=return_state,
                training=training,
                query_mask=mask,
                value_mask=memory_mask,
            )
        x = self.feed_forward(x, training)
        return (x, states) if return_state else x

    def _check_memory(self, memory: Any, states: dict[str, Any]) -> None:
        if self.cross_attention is None:
            if memory is not None or "cross" in states:
                raise ValueError(
                    "A decoder without `cross_attention` sees no memory. "
                    "Leave it out, or build the block with one."
                )
        elif memory is None and states.get("cross") is None:
            raise ValueError(
                "A decoder with `cross_attention` needs `memory`, or "
                '`initial_state={"cross": cross_attention.encode(memory)}`.'
            )
        elif memory is not None and states.get("cross") is not None:
            raise ValueError(
                'Pass either `memory` or `initial_state["cross"]`: the state '
                "is a memory that has been compressed. Received: both"
            )
        unknown = states.keys() - {"self", "cross"}
        if unknown:
            raise ValueError(
                '`initial_state` may have the keys "self" and "cross". '
                f"Received: {sorted(states)}"
            )

    def get_initial_state(
        self,
        batch_size: Any,
        training: bool | None = None,
        max_length: int | None = None,
    ) -> Any:
        """Returns the state of a self-attention that has read nothing.

        Args:
            batch_size: int. Rows of the batch, `b`.
            training: bool. Whether to draw the matrices of later calls.
            max_length: int. Steps to make room for, where a state grows.
        """
        self.check_state(self.self_attention)
        get_initial_state = self.self_attention.get_initial_state
        sizes = {}
        if "max_length" in inspect.signature(get_initial_state).parameters:
            sizes["max_length"] = max_length
        return {"self": get_initial_state(batch_size, training, **sizes)}

    def compute_output_shape(
        self, inputs_shape: Any, memory_shape: Any = None
    ) -> Any:
        return inputs_shape

    def compute_output_spec(
        self,
        inputs: Any,
        memory: Any = None,
        *args: Any,
        initial_state: Any = None,
        return_state: bool = False,
        **kwargs: Any,
    ) -> Any:
        if isinstance(inputs, keras.KerasTensor):  # a `RematScope` asks too
            self._check_memory(memory, dict(initial_state or {}))
        outputs = keras.KerasTensor(inputs.shape, self.compute_dtype)
        if not return_state:
            return outputs
        states = {"self": self.state_spec(self.self_attention, inputs, True)}
        if self.cross_attention is not None:
            states["cross"] = self.state_spec(self.cross_attention, inputs)
        return outputs, states

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        cross = self.cross_attention
        return {
            **super().get_config(),
            "self_attention": serialize(self.self_attention),
            "cross_attention": None if cross is None else serialize(cross),
        }
