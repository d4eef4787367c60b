from typing import Any

import keras
from keras import ops

from keras_rfa.layers.composite_layer import CompositeLayer
from keras_rfa.ops.attention_sums import heads_first
from keras_rfa.ops.checks import check_positive

Tensor = Any
Shape = tuple[int | None, ...]


class MultiHeadProjections(CompositeLayer):
    """The dense maps around an attention: into heads, and out of them.

    The base of the attention layers here. Its sublayers are `EinsumDense`
    named `"query"`, `"key"`, `"value"` and `"attention_output"`, as in
    `keras.layers.MultiHeadAttention`, so that LoRA, quantisation and layout
    maps find them.

    Args:
        num_heads: int. Number of heads, `h`.
        key_dim: int. Width of a query or key, `d`.
        value_dim: int. Width of a value, `e`. Defaults to `key_dim`.
        use_bias: bool. Whether the dense maps add a bias.
        output_shape: int. Width of the output. Defaults to the query's.
        kernel_initializer: Initializer of the kernels.
        bias_initializer: Initializer of the biases.
        kernel_regularizer: Regularizer of the kernels.
        bias_regularizer: Regularizer of the biases.
        activity_regularizer: Regularizer of the output.
        kernel_constraint: Constraint of the kernels.
        bias_constraint: Constraint of the biases.
        **kwargs: `name`, `dtype` and the like, for `keras.layers.Layer`.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        use_bias: bool = True,
        output_shape: int | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        # States are float32 whatever the policy, and autocasting would cast
        # them: these layers cast their other inputs themselves.
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        value_dim = key_dim if value_dim is None else value_dim
        self.num_heads = check_positive("num_heads", num_heads)
        self.key_dim = check_positive("key_dim", key_dim)
        self.value_dim = check_positive("value_dim", value_dim)
        self.use_bias = use_bias
        if output_shape is not None:
            output_shape = check_positive("output_shape", output_shape)
        self.output_width = output_shape
        get = keras.initializers.get
        self.kernel_initializer = get(kernel_initializer)
        self.bias_initializer = get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        # Not the layer's own, which would also be asked about states.
        self.output_regularizer = keras.regularizers.get(activity_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)

    def build_projections(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape
    ) -> None:
        """Creates and builds the dense maps for inputs of these shapes."""
        h, d, e = self.num_heads, self.key_dim, self.value_dim
        self.query_dense = self._head_dense("query", d)
        self.key_dense = self._head_dense("key", d)
        self.value_dense = self._head_dense("value", e)
        self.query_dense.build(query_shape)
        self.key_dense.build(key_shape)
        self.value_dense.build(value_shape)
        width = self.output_width or query_shape[-1]
        self.output_dense = keras.layers.EinsumDense(
            "bthe,hef->btf",
            output_shape=(None, width),
            bias_axes="f" if self.use_bias else None,
            activity_regularizer=self.output_regularizer,
            name="attention_output",
            **self._dense_arguments("attention_output"),
        )
        self.output_dense.build((*query_shape[:-1], h, e))

    def into_heads(self, dense: keras.layers.Layer, x: Tensor) -> Tensor:
        """Maps `(b, t, f)` into heads: `(h, b, t, width)`, as sums take it.

        They are turned here, outside of what a layer computes again in the
        backward pass.
        """
        x = ops.cast(x, self.compute_dtype)
        width = dense.partial_output_shape[-1]
        if width > 1:
            return heads_first(dense(x))
        # A bias `(h, 1)` looks to `ops.add` on TensorFlow like one of channels
        # that come first, and is added along the steps where there are h of
        # them: here each step is a row of its own.
        rows = dense(ops.reshape(x, (-1, 1, x.shape[-1])))
        shape = (*ops.shape(x)[:2], self.num_heads, width)
        return heads_first(ops.reshape(rows, shape))

    def compute_output_shape(
        self, query_shape: Any, value_shape: Any = None, key_shape: Any = None
    ) -> Any:
        return (*query_shape[:-1], self.output_width or query_shape[-1])

    def dense_layers(self) -> list[keras.layers.Layer]:
        return [
            self.query_dense,
            self.key_dense,
            self.value_dense,
            self.output_dense,
        ]

    def _head_dense(self, name: str, width: int) -> keras.layers.Layer:
        dense = keras.layers.EinsumDense(
            "btf,fhd->bthd",
            output_shape=(None, self.num_heads, width),
            bias_axes="hd" if self.use_bias else None,
            name=name,
            **self._dense_arguments(name),
        )
        # It maps each step by itself; without this it warns of lost masks.
        dense.supports_masking = True
        return dense

    def _dense_arguments(self, name: str, policy: Any = None) -> dict[str, Any]:
        return {
            "kernel_initializer": clone_initializer(self.kernel_initializer),
            "bias_initializer": clone_initializer(self.bias_initializer),
            "kernel_regularizer": self.kernel_regularizer,
            "bias_regularizer": self.bias_regularizer,
            "kernel_constraint": self.kernel_constraint,
            "bias_constraint": self.bias_constraint,
            **self.dense_policy(name, policy or self.dtype_policy),
        }

    def get_config(self) -> dict[str, Any]:
        initializers = keras.initializers.serialize
        regularizers = keras.regularizers.serialize
        constraints = keras.constraints.serialize
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "use_bias": self.use_bias,
            "output_shape": self.output_width,
            "kernel_initializer": initializers(self.kernel_initializer),
            "bias_initializer": initializers(self.bias_initializer),
            "kernel_regularizer": regularizers(self.kernel_regularizer),
            "bias_regularizer": regularizers(self.bias_regularizer),
            "activity_regularizer": regularizers(self.output_regularizer),
            "kernel_constraint": constraints(self.kernel_constraint),
            "bias_constraint": constraints(self.bias_constraint),
        }


def clone_initializer(initializer: Any) -> Any:
    """Copies an initializer, which gives the same values at each call."""
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    return type(initializer).from_config(initializer.get_config())
