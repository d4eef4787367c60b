from typing import Any

import keras
from keras import ops

from keras_rfa.ops.checks import check_shape

Tensor = Any


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
        mask: bool tensor of shape `(b, t)`, `True` at real steps.

    Output shape:
        `(b, width)`, without a mask.

    Example:

    >>> x = keras.random.normal((2, 10, 8))
    >>> keras_rfa.layers.MaskedAveragePooling()(x).shape
    (2, 8)
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        check_shape("inputs", input_shape, batch=None, steps=None, width=None)
        self.built = True

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
        real = ops.ones_like(x[..., :1])
        if mask is not None:
            counts = ops.cast(mask, "bool")[..., None]
            real = ops.where(counts, real, 0)
            x = ops.where(counts, x, 0)
        average = ops.sum(x, axis=1) / ops.maximum(ops.sum(real, axis=1), 1)
        return ops.cast(average, inputs.dtype)

    def compute_mask(self, inputs: Tensor, mask: Any = None) -> None:
        return None

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (input_shape[0], input_shape[-1])
