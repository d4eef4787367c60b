import contextvars
from collections.abc import Callable
from typing import Any

import keras

Tensor = Any
Tensors = dict[str, Tensor]

_INSIDE = contextvars.ContextVar(
    "inside of what is computed again", default=False
)


def rematerialized(
    function: Callable[[Tensors], Any],
    tensors: Tensors,
    training: bool | None,
) -> Any:
    """Calls a function, and in training computes it again for the gradient.

    Features and chunks are several times as large as their inputs. Computing
    them again in the backward pass costs less than keeping those of every
    layer in memory. What is a part of something computed again, such as of a
    window, is not by itself.

    Args:
        function: from a dict of tensors to float tensors. It must draw nothing
            at random.
        tensors: dict of float tensors. (On TensorFlow rematerialisation adds
            zeros to its inputs, which bools do not take.)
        training: bool. Whether there will be a gradient.
    """
    if not training or _INSIDE.get():
        return function(tensors)
    function = _marked(function)
    if keras.backend.backend() == "jax":
        return _rematerialized_on_jax(function, tensors)
    names = list(tensors)

    def positional(*values: Tensor) -> Any:
        return function(dict(zip(names, values, strict=True)))

    return keras.remat(positional)(*tensors.values())


def _marked(function: Callable[[Tensors], Any]) -> Callable[[Tensors], Any]:
    def call(tensors: Tensors) -> Any:
        token = _INSIDE.set(True)
        try:
            return function(tensors)
        finally:
            _INSIDE.reset(token)

    return call


def _rematerialized_on_jax(
    function: Callable[[Tensors], Any], tensors: Tensors
) -> Any:
    """Does what `jax.checkpoint` means to do, on processors too.

    There XLA runs whatever has its inputs, and so would compute everything
    again in the forward pass, and keep it. Inputs that wait for the upstream
    gradient come when they are needed.
    """
    import jax

    # What the function uses without taking it, such as weights, is an input
    # too.
    program, shapes = jax.make_jaxpr(function, return_shape=True)(tensors)

    def run(used: Any, tensors: Tensors) -> Any:
        outputs = jax.core.eval_jaxpr(
            program.jaxpr, used, *jax.tree.leaves(tensors)
        )
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    def gradient(inputs: Any, upstream: Any) -> Any:
        inputs, upstream = jax.lax.optimization_barrier((inputs, upstream))
        if jax.default_backend() == "cpu":  # which has no such barrier
            first = jax.tree.leaves(upstream)[0].ravel()[:1]
            never = (first > jax.numpy.inf).any()
            inputs = jax.tree.map(
                lambda x: jax.numpy.where(never, jax.numpy.zeros_like(x), x),
                inputs,
            )
        return jax.vjp(run, *inputs)[1](upstream)

    call = jax.custom_vjp(run)
    call.defvjp(lambda *inputs: (run(*inputs), inputs), gradient)
    return call(program.consts, tensors)
