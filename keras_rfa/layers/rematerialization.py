from collections.abc import Callable
from typing import Any

import keras

Tensor = Any


def rematerialized(
    function: Callable[[dict[str, Tensor]], Any],
    tensors: dict[str, Tensor],
    training: bool | None,
) -> Any:
    """Calls a function, and in training computes it again for the gradient.

    Features and chunks are several times as large as their inputs. Computing
    them again in the backward pass costs less than keeping those of every
    layer in memory.

    Args:
        function: from a dict of tensors to tensors. It must draw nothing at
            random, and take whatever it depends on from the dict.
        tensors: dict of float tensors. (On TensorFlow rematerialisation adds
            zeros to its inputs, which bools do not take.)
        training: bool. Whether there will be a gradient.
    """
    if not training:
        return function(tensors)
    names = list(tensors)

    def positional(*values: Tensor) -> Any:
        return function(dict(zip(names, values, strict=True)))

    return keras.remat(positional)(*tensors.values())
