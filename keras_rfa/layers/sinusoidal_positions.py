from typing import Any

import keras
import numpy as np
from keras import ops

from keras_rfa.ops.checks import check_number, check_shape

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_rfa")
class SinusoidalPositions(keras.layers.Layer):
    """Adds sines and cosines of the step to its vector.

    Nothing is learned, so a model reads sequences of any length. Positions
    are computed in float32: bfloat16 can not count beyond 256.

    Args:
        max_wavelength: float. The longest wavelength, in steps over `2π`.
        **kwargs: `name`, `dtype` and the like, for `keras.layers.Layer`.

    Call arguments:
        inputs: Tensor of shape `(b, t, width)`.
        start_index: int or int tensor of shape `()` or, one for each row,
            `(b,)`: the position of the first step.

    Output shape:
        As `inputs`.

    Example:

    >>> x = keras.random.normal((2, 1000, 64))
    >>> keras_rfa.layers.SinusoidalPositions()(x).shape
    (2, 1000, 64)

    References:

    - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762)
    """

    def __init__(self, max_wavelength: float = 10000.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_wavelength = check_number("max_wavelength", max_wavelength, 1)
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        check_shape("inputs", input_shape, batch=None, steps=None, width=None)
        self.built = True

    def call(self, inputs: Tensor, start_index: Any = 0) -> Tensor:
        steps, width = ops.shape(inputs)[1:]
        start_index = ops.cast(start_index, "int32")
        # `(t,)` or `(b, t)`
        position = ops.arange(steps, dtype="int32") + start_index[..., None]
        exponents = np.arange(0, width, 2, dtype="float32") / width
        frequencies = ops.convert_to_tensor(
            self.max_wavelength**-exponents, dtype="float32"
        )
        angle = ops.cast(position, "float32")[..., None] * frequencies
        waves = ops.concatenate([ops.sin(angle), ops.cos(angle)], axis=-1)
        return inputs + ops.cast(waves[..., :width], inputs.dtype)

    def compute_output_shape(self, input_shape: Any, *_: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "max_wavelength": self.max_wavelength}
