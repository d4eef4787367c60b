import gc
import inspect
import weakref
from typing import Any

import keras
from keras import ops

from keras_rfa.layers.composite_layer import CompositeLayer
from keras_rfa.layers.multi_head_projections import clone_initializer
from keras_rfa.layers.rematerialization import rematerialized
from keras_rfa.ops.checks import check_positive

Tensor = Any


class TransformerBlock(CompositeLayer):
    """What an encoder and a decoder block have in common.

    Each sublayer, an attention or the feed-forward network, stands in a
    residual connection with a layer normalisation before it
    (`normalize_first`) or after the sum, and dropout at its end.

    Args:
        intermediate_dim: int. Hidden width of the feed-forward network.
        dropout: float. The share of a sublayer's output to drop.
        activation: Activation of the feed-forward network.
        normalize_first: bool. Whether to normalise what enters a sublayer
            rather than the sum that leaves it.
        layer_norm_epsilon: float. Epsilon of the normalisations.
        kernel_initializer: Initializer of the dense kernels.
        bias_initializer: Initializer of the biases.
        **kwargs: `name`, `dtype` and the like, for `keras.layers.Layer`.
    """

    def __init__(
        self,
        intermediate_dim: int,
        dropout: float = 0.0,
        activation: Any = "gelu",
        normalize_first: bool = True,
        layer_norm_epsilon: float = 1e-5,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        # The states of attention layers stay float32.
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self.intermediate_dim = check_positive(
            "intermediate_dim", intermediate_dim
        )
        self.dropout = dropout
        with keras.RematScope(mode=None):
            self.dropout_layer = keras.layers.Dropout(
                dropout, dtype=self.dtype_policy, name="dropout"
            )
        self.activation = keras.activations.get(activation)
        self.normalize_first = normalize_first
        self.layer_norm_epsilon = layer_norm_epsilon
        get = keras.initializers.get
        self.kernel_initializer = get(kernel_initializer)
        self.bias_initializer = get(bias_initializer)

    def build_feed_forward(self, input_shape: Any) -> None:
        """Creates and builds the feed-forward network and its residual."""
        self.feed_forward_norm = self.build_norm("feed_forward", input_shape)
        self.expand_dense = self._dense("expand", self.intermediate_dim)
        self.expand_dense.build(input_shape)
        self.contract_dense = self._dense("contract", input_shape[-1])
        self.contract_dense.build((*input_shape[:-1], self.intermediate_dim))
        self.dropout_layer.build(input_shape)

    def build_norm(self, sublayer: str, shape: Any) -> keras.layers.Layer:
        """Creates and builds the normalisation of a sublayer."""
        with keras.RematScope(mode=None):
            norm = keras.layers.LayerNormalization(
                epsilon=self.layer_norm_epsilon,
                dtype=self.dtype_policy,
                name=f"{sublayer}_norm",
            )
        norm.build(shape)
        return norm

    def build_attention(
        self, attention: keras.layers.Layer, query: Any, value: Any
    ) -> None:
        """Builds a wrapped attention layer unless it has been built."""
        if attention.built:
            return
        if "query_shape" in inspect.signature(attention.build).parameters:
            attention.build(query_shape=query, value_shape=value)
        else:  # a layer that Keras builds when it is called
            attention(keras.KerasTensor(query), keras.KerasTensor(value))

    def attend(
        self,
        attention: keras.layers.Layer,
        norm: keras.layers.Layer,
        x: Tensor,
        memory: Tensor | None = None,
        itself: bool = True,
        state: Any = None,
        return_state: bool = False,
        training: bool | None = None,
        **masks: Any,
    ) -> tuple[Tensor, Any]:
        """Adds what an attention layer sees; returns also its last state."""
        # Keras' own attention takes the masks off the tensors that it is
        # given, which others may still read.
        query = norm(x) if self.normalize_first else ops.copy(x)
        memory = None if memory is None else ops.copy(memory)
        states = {}
        if state is not None or return_state:
            self.check_state(attention)
            states = {"initial_state": state, "return_state": return_state}
        outputs = attention(
            query,
            query if itself else memory,
            training=training,
            **masks,
            **states,
        )
        outputs, last = outputs if return_state else (outputs, None)
        return self._residual(x, outputs, norm, training), last

    def check_state(self, attention: keras.layers.Layer) -> None:
        """Raises a `ValueError` if an attention layer has no state."""
        if not hasattr(attention, "get_initial_state"):
            raise ValueError(
                f"{type(attention).__name__} keeps no state, so a block around "
                "it can neither take nor return one."
            )

    def state_spec(
        self, attention: Any, inputs: Any, causal: bool = False
    ) -> Any:
        """Returns the shapes and dtypes of the last state."""
        self.check_state(attention)
        _, state = attention.compute_output_spec(
            inputs, inputs, use_causal_mask=causal, return_state=True
        )
        return state

    def feed_forward(self, x: Tensor, training: bool | None) -> Tensor:
        """Adds the output of the feed-forward network."""

        def network(x: Tensor) -> Tensor:
            return self._network(x, training)

        call = network
        if training:  # in a `keras.RematScope`, computed again
            call = self.rematerialized_part(network, x)
        outputs = call(x)
        return self._residual(x, outputs, self.feed_forward_norm, training)

    def _network(self, x: Tensor, training: bool | None) -> Tensor:
        if self.normalize_first:
            x = self.feed_forward_norm(x)
        # Of all that is kept for the gradient this would be the widest.
        return rematerialized(
            lambda x: self.contract_dense(self.activation(x["expanded"])),
            {"expanded": self.expand_dense(x)},
            training,
        )

    def _residual(
        self,
        x: Tensor,
        outputs: Tensor,
        norm: keras.layers.Layer,
        training: bool | None,
    ) -> Tensor:
        x = ops.add(x, self.dropout_layer(outputs, training=training))
        return x if self.normalize_first else norm(x)

    def dense_layers(self) -> list[keras.layers.Layer]:
        return [self.expand_dense, self.contract_dense]

    def _dense(self, name: str, width: int) -> keras.layers.Layer:
        with keras.RematScope(mode=None):
            return keras.layers.Dense(
                width,
                kernel_initializer=clone_initializer(self.kernel_initializer),
                bias_initializer=clone_initializer(self.bias_initializer),
                name=name,
                **self.dense_policy(name, self.dtype_policy),
            )

    def get_config(self) -> dict[str, Any]:
        serialize = keras.initializers.serialize
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "dropout": self.dropout,
            "activation": keras.activations.serialize(self.activation),
            "normalize_first": self.normalize_first,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "kernel_initializer": serialize(self.kernel_initializer),
            "bias_initializer": serialize(self.bias_initializer),
        }


def own_layers(block: Any, **layers: Any) -> list[keras.layers.Layer]:
    """Returns attention layers, also from serialised forms, for one block.

    Args:
        block: the block that is made.
        **layers: the layers, each under the name of its argument.

    Raises:
        ValueError: if one is not a layer, or if another block has it. Then
            none of them belongs to a block that was not made.
    """
    for argument, layer in layers.items():
        if isinstance(layer, dict):
            # Weights that are built here have the block in their path.
            with keras.name_scope(block.name, caller=block):
                layer = keras.saving.deserialize_keras_object(layer)
            layers[argument] = layer
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(
                f"`{argument}` must be an attention layer, called as "
                "`keras.layers.MultiHeadAttention` is. "
                f"Received: {argument}={layer!r}"
            )
        others = [x for name, x in layers.items() if name != argument]
        is_shared = any(layer is other for other in others)
        if is_shared or _is_in_a_block(layer):
            raise ValueError(
                f"`{argument}` already belongs to a block. Blocks that share a "
                "layer share its weights, and do not load again from a file: "
                f"make a new layer for each. Received: {layer.name!r}"
            )
    for layer in layers.values():
        layer.block = weakref.ref(block)
    return list(layers.values())


def _is_in_a_block(layer: keras.layers.Layer) -> bool:
    """Tells whether a block that is still in use has the layer."""
    if not hasattr(layer, "block"):
        return False
    gc.collect()  # blocks that nothing refers to but themselves
    return layer.block() is not None
