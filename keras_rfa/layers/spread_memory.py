import math
from typing import Any

import keras
import numpy as np
from keras import ops

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_rfa")
class SpreadMemory(keras.initializers.Initializer):
    """Gate biases that let the heads remember for different times.

    A gate of `1 - 1/n` remembers for about `n` steps. The heads get lengths
    `n` in a geometric series; a single head gets its middle.

    Args:
        shortest: float. Steps that the first head remembers, more than 1.
        longest: float. Steps that the last head remembers.

    Example:

    >>> keras_rfa.layers.GatedRandomFeatureAttention(
    ...     4, 16, gate_bias_initializer=keras_rfa.layers.SpreadMemory(8, 4096))
    """

    def __init__(self, shortest: float = 4.0, longest: float = 512.0) -> None:
        if not 1 < shortest <= longest < math.inf:
            raise ValueError(
                "Gates remember for more than one step: 1 < shortest <= "
                "longest < inf. "
                f"Received: shortest={shortest}, longest={longest}"
            )
        self.shortest = shortest
        self.longest = longest

    def __call__(self, shape: Any, dtype: Any = None) -> Tensor:
        heads = shape[-1]
        steps = np.geomspace(self.shortest, self.longest, heads)
        if heads == 1:
            steps = np.sqrt([self.shortest * self.longest])
        # g = 1 - 1/n has the logit log(n - 1).
        logits = np.broadcast_to(np.log(steps - 1), shape)
        return ops.cast(logits, dtype or keras.config.floatx())

    def get_config(self) -> dict[str, Any]:
        return {"shortest": self.shortest, "longest": self.longest}
