from typing import Any

import keras
from keras import ops

from keras_rfa.layers.key_padding import mask_of, real_span
from keras_rfa.layers.streaming_layer import State, StreamingLayer
from keras_rfa.ops.checks import check_positive

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_rfa")
class ShortConvolution(StreamingLayer):
    """Adds to each step a weighted sum of it and of the steps just before it.

    Linear attention sees far, and blurs what is near: a short convolution
    before it lets "not good" differ from "good". Each entry of the vectors has
    weights of its own, no step sees a later one, and padding counts as 0.

        y_t = x_t + sum_j w_j * x_{t-j},    j = 0 ... kernel_size - 1

    Args:
        kernel_size: int, at least 2. Steps in the sum, with the step itself.
        kernel_initializer: Initializer of the weights `(kernel_size, width)`.
            The default keeps the variance of the inputs in the sum.
        kernel_regularizer: Regularizer of the weights.
        kernel_constraint: Constraint of the weights.
        **kwargs: `name`, `dtype` and the like, for `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor of shape `(b, t, width)`.
        mask: bool tensor of shape `(b, t)`, `True` at real steps. Defaults to
            the mask of `inputs`.
        initial_state: dict, the state that the layer returned for the part of
            the sequence before. Nothing is before it by default.
        return_state: bool. Whether to return the last state too.
        ragged: bool. Whether the rows are parts of different lengths: padding
            at either end of a row is then not there, so that the state before
            stands just before the first real step.

    Output shape:
        As `inputs`, with their mask; with `return_state` a pair of it and the
        state: a dict of `"inputs"` `(b, kernel_size - 1, width)` in the
        compute dtype, the steps that the next part still reads.

    Raises:
        ValueError: if `kernel_size` is less than 2, if inputs, mask or state
            have other shapes than these, or if a state is asked of a layer
            that is not built.

    Example:

    >>> x = keras.random.normal((2, 1000, 64))
    >>> keras_rfa.layers.ShortConvolution(4)(x).shape
    (2, 1000, 64)

    References:

    - [So et al., 2021](https://arxiv.org/abs/2109.08668), convolutions of each
      entry in transformers.
    - [Fu et al., 2023](https://arxiv.org/abs/2212.14052), beside linear
      attention.
    """

    def __init__(
        self,
        kernel_size: int = 4,
        kernel_initializer: Any = "lecun_normal",
        kernel_regularizer: Any = None,
        kernel_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True
        self.kernel_size = check_positive("kernel_size", kernel_size, 2)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, self.width),
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
        )

    def call(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        initial_state: State | None = None,
        return_state: bool = False,
        ragged: bool = False,
    ) -> Any:
        mask = mask_of(inputs) if mask is None else mask
        self.check_call(inputs, mask, initial_state)
        inputs = ops.cast(inputs, self.compute_dtype)
        x = inputs
        if mask is not None:
            x = ops.where(ops.expand_dims(ops.cast(mask, "bool"), -1), x, 0)
        batch, steps = ops.shape(x)[:2]
        if initial_state is None:
            initial_state = self.get_initial_state(batch)
        before = ops.cast(initial_state["inputs"], self.compute_dtype)
        span = real_span(mask) if ragged and mask is not None else None
        x = self._join(before, x, span)
        # Sums of shifted inputs, which XLA fuses to one loop: on processors
        # its convolutions of single entries take 2 to 40 times as long.
        outputs = inputs
        kernel = ops.cast(self.kernel, self.compute_dtype)
        for j in range(self.kernel_size):
            first = self.kernel_size - 1 - j
            outputs = outputs + kernel[j] * x[:, first : first + steps]
        if not return_state:
            return outputs
        last = x[:, steps:]
        if span is not None:
            index = span[1][:, None] + ops.arange(self.kernel_size - 1)
            last = ops.take_along_axis(x, index[..., None], axis=1)
        # The shape for graphs that lost it, and a copy so that on torch the
        # last steps do not keep all the others in memory.
        last = ops.reshape(last, (batch, self.kernel_size - 1, self.width))
        return outputs, {"inputs": ops.copy(last)}

    def _join(self, before: Tensor, x: Tensor, span: Any) -> Tensor:
        """Returns all steps, those before just before the first real one."""
        if span is None:
            return ops.concatenate([before, x], axis=1)
        x = ops.pad(x, [[0, 0], [self.kernel_size - 1, 0], [0, 0]])
        place = ops.arange(ops.shape(x)[1]) - span[0][:, None]
        for j in range(self.kernel_size - 1):
            here = ops.equal(place, j)[..., None]
            x = ops.where(here, before[:, j, None], x)
        return x

    def state_dimensions(self, batch: Any) -> dict[str, dict[str, Any]]:
        steps = self.kernel_size - 1
        return {"inputs": {"batch": batch, "steps": steps, "width": self.width}}

    @property
    def state_dtype(self) -> str:
        return self.compute_dtype

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def compute_output_spec(
        self,
        inputs: Any,
        mask: Any = None,
        initial_state: Any = None,
        return_state: bool = False,
        ragged: bool = False,
    ) -> Any:
        self.check_call(inputs, mask, initial_state)
        outputs = keras.KerasTensor(inputs.shape, self.compute_dtype)
        if return_state:
            return outputs, self.state_spec(inputs.shape[0])
        return outputs

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "kernel_size": self.kernel_size,
            "kernel_initializer": keras.initializers.serialize(
                self.kernel_initializer
            ),
            "kernel_regularizer": keras.regularizers.serialize(
                self.kernel_regularizer
            ),
            "kernel_constraint": keras.constraints.serialize(
                self.kernel_constraint
            ),
        }
