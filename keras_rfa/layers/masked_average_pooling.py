from typing import Any

import keras
from keras import ops

from keras_rfa.layers.key_padding import mask_of
from keras_rfa.ops.checks import check_shape, check_shapes

Tensor = Any
State = dict[str, Tensor]


@keras.saving.register_keras_serializable(package="keras_rfa")
class MaskedAveragePooling(keras.layers.Layer):
    """The average over the real steps of a sequence; 0 where there is none.

    `keras.layers.GlobalAveragePooling1D` divides by the number of real steps,
    and so gives NaN for a row that is all padding. Sums are float32 whatever
    the dtype policy.

    Args:
        **kwargs: `name`, `dtype` and the like, for `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor of shape `(b, t, width)`.
        mask: bool tensor of shape `(b, t)`, `True` at real steps. Defaults to
            the mask of `inputs`.
        initial_state: dict, the state that the layer returned for an earlier
            part of the sequence. The average is then that of both.
        return_state: bool. Whether to return the last state too.

    Output shape:
        `(b, width)`, without a mask; with `return_state` a pair of it and the
        state: a dict of `"sum"` `(b, width)` and `"count"` `(b, 1)`, float32.

    Raises:
        ValueError: if inputs, mask or state have other shapes than these, or
            if a state is asked of a layer that is not built.

    Example:

    >>> x = keras.random.normal((2, 10, 8))
    >>> keras_rfa.layers.MaskedAveragePooling()(x).shape
    (2, 8)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)  # states stay float32
        self.supports_masking = True
        self.sum_dtype = keras.backend.result_type(
            self.compute_dtype, "float32"
        )

    def build(self, input_shape: Any) -> None:
        check_shape("inputs", input_shape, batch=None, steps=None, width=None)
        self.width = input_shape[-1]
        self.built = True

    def call(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        initial_state: State | None = None,
        return_state: bool = False,
    ) -> Any:
        mask = mask_of(inputs) if mask is None else mask
        self._check(inputs, mask, initial_state)
        x = ops.cast(inputs, self.sum_dtype)
        real = ops.ones_like(x[..., :1])
        if mask is not None:
            counts = ops.expand_dims(ops.cast(mask, "bool"), -1)
            real = ops.where(counts, real, 0)
            x = ops.where(counts, x, 0)
        state = {"sum": ops.sum(x, axis=1), "count": ops.sum(real, axis=1)}
        if initial_state is not None:
            state = {name: initial_state[name] + state[name] for name in state}
        average = state["sum"] / ops.maximum(state["count"], 1)
        average = ops.cast(average, self.compute_dtype)
        return (average, state) if return_state else average

    def _check(self, inputs: Any, mask: Any, initial_state: Any) -> None:
        batch, steps = inputs.shape[:2]
        width = self.width
        check_shape("inputs", inputs, batch=None, steps=None, width=width)
        if mask is not None:
            check_shape("mask", mask, batch=batch, steps=steps)
        if initial_state is not None:
            check_shapes(
                "initial_state",
                initial_state,
                sum={"batch": batch, "width": width},
                count={"batch": batch, "entries": 1},
            )

    def get_initial_state(
        self, batch_size: Any, training: bool | None = None
    ) -> State:
        """Returns the state of a layer that has read nothing.

        Args:
            batch_size: int. Rows of the batch, `b`.
            training: bool. Not used: nothing is drawn.

        Raises:
            ValueError: if the layer is not built.
        """
        if not self.built:
            raise ValueError(
                f"{self.name!r} must be built before it has a state. Call it "
                "once, or call `build(input_shape)`."
            )
        return {
            "sum": ops.zeros((batch_size, self.width), self.sum_dtype),
            "count": ops.zeros((batch_size, 1), self.sum_dtype),
        }

    def compute_mask(self, inputs: Tensor, mask: Any = None) -> None:
        return None

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (input_shape[0], input_shape[-1])

    def compute_output_spec(
        self,
        inputs: Any,
        mask: Any = None,
        initial_state: Any = None,
        return_state: bool = False,
    ) -> Any:
        self._check(inputs, mask, initial_state)
        batch, width = self.compute_output_shape(inputs.shape)
        average = keras.KerasTensor((batch, width), self.compute_dtype)
        if not return_state:
            return average
        return average, {
            "sum": keras.KerasTensor((batch, width), self.sum_dtype),
            "count": keras.KerasTensor((batch, 1), self.sum_dtype),
        }
