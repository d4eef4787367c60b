"""Functions whose gradient is written, not derived."""

from collections.abc import Callable
from typing import Any

import keras
from keras import tree

Tensor = Any
Tensors = dict[str, Tensor]


def with_gradient(
    function: Callable[[Tensors], tuple[Tensor, ...]],
    gradient: Callable[[Tensors, tuple[Tensor, ...]], Tensors],
) -> Callable[[Tensors], tuple[Tensor, ...]]:
    """Gives a function of tensors its gradient.

    Derived gradients of products of transposed matrices copy them to other
    layouts and keep every intermediate. Written ones do neither: they keep
    the inputs alone, and compute the rest again.

    `keras.ops.custom_gradient` is for one output, and on torch returns NaN
    where a gradient fails, so that each backend's own is used here.

    Args:
        function: from a dict of float tensors to a tuple of tensors.
        gradient: from the same dict, and the gradient of each output, to the
            gradient of each input. It must be differentiable itself.

    Returns:
        A function like `function`. It has a reverse-mode gradient only.
    """

    def call(tensors: Tensors) -> tuple[Tensor, ...]:
        if any(map(keras.backend.is_keras_tensor, tree.flatten(tensors))):
            return function(tensors)
        return _CALLS[keras.backend.backend()](function, gradient, tensors)

    return call


def _call_on_jax(function: Any, gradient: Any, tensors: Tensors) -> Any:
    import jax

    differentiable = jax.custom_vjp(function)
    differentiable.defvjp(
        lambda tensors: (function(tensors), tensors),
        lambda tensors, upstream: (gradient(tensors, upstream),),
    )
    return differentiable(tensors)


def _call_on_tensorflow(function: Any, gradient: Any, tensors: Tensors) -> Any:
    import tensorflow as tf

    names = list(tensors)

    @tf.custom_gradient
    def differentiable(*values: Tensor) -> Any:
        given = dict(zip(names, values, strict=True))

        def of_each(*upstream: Tensor) -> list[Tensor]:
            gradients = gradient(given, upstream)
            return [gradients[name] for name in names]

        return function(given), of_each

    return differentiable(*tensors.values())


def _call_on_torch(function: Any, gradient: Any, tensors: Tensors) -> Any:
    import torch

    names = list(tensors)

    class Differentiable(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, *values: Tensor) -> Any:
            context.save_for_backward(*values)
            return function(dict(zip(names, values, strict=True)))

        @staticmethod
        def backward(context: Any, *upstream: Tensor) -> Any:
            values = context.saved_tensors
            given = dict(zip(names, values, strict=True))
            gradients = gradient(given, upstream)
            return tuple(gradients[name] for name in names)

    return Differentiable.apply(*tensors.values())


_CALLS = {
    "jax": _call_on_jax,
    "tensorflow": _call_on_tensorflow,
    "torch": _call_on_torch,
}
