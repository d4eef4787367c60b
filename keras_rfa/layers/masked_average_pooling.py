from typing import Any

import keras
from keras import ops

from keras_rfa.layers.key_padding import mask_of
from keras_rfa.layers.streaming_layer import State, StreamingLayer

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_rfa")
class MaskedAveragePooling(StreamingLayer):
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

    def call(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        initial_state: State | None = None,
        return_state: bool = False,
    ) -> Any:
        mask = mask_of(inputs) if mask is None else mask
        self.check_call(inputs, mask, initial_state)
        x = ops.cast(inputs, self.state_dtype)
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

    def state_dimensions(self, batch: Any) -> dict[str, dict[str, Any]]:
        return {
            "sum": {"batch": batch, "width": self.width},
            "count": {"batch": batch, "entries": 1},
        }

    @property
    def state_dtype(self) -> str:
        return keras.backend.result_type(self.compute_dtype, "float32")

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
        self.check_call(inputs, mask, initial_state)
        batch, width = self.compute_output_shape(inputs.shape)
        average = keras.KerasTensor((batch, width), self.compute_dtype)
        if return_state:
            return average, self.state_spec(batch)
        return average
