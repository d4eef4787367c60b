"""Programs of a model, compiled once each, where the backend compiles."""

import collections
import weakref
from collections.abc import Callable
from typing import Any

import keras
from keras import ops, tree

Tensor = Any

# A program holds no model, so that it goes when the model goes.
_PROGRAMS: weakref.WeakKeyDictionary[
    Any, collections.OrderedDict[Any, Callable[..., Any]]
] = weakref.WeakKeyDictionary()
# More are there only where each call brings a sampler class of its own.
_MOST_PROGRAMS = 32
# On torch each look at the device makes it wait for the host.
_STEPS_BETWEEN_LOOKS = 16


def run(
    function: Callable[..., Any], model: Any, sampler: Any, *tensors: Any
) -> Any:
    """Returns `function(model, sampler, *tensors)`, compiled.

    The weights are read at each call, and new ones compile nothing new.

    Args:
        function: of a model, a sampler and structures of tensors. It assigns
            no variables.
        model: a Keras model.
        sampler: an object with a `key` that tells programs apart, or `None`.
        *tensors: structures of arrays, of which only shapes and dtypes make
            other programs.
    """
    tensors = tree.map_structure(ops.convert_to_tensor, tensors)
    if keras.backend.backend() == "torch":
        import torch

        with torch.no_grad():
            return function(model, sampler, *tensors)
    variables = model.variables
    key = (
        function,
        None if sampler is None else sampler.key,
        tuple(id(variable) for variable in variables),
    )
    programs = _PROGRAMS.setdefault(model, collections.OrderedDict())
    if key not in programs:
        programs[key] = _compile(function, weakref.ref(model), sampler)
        if len(programs) > _MOST_PROGRAMS:
            programs.popitem(last=False)
    programs.move_to_end(key)
    if keras.backend.backend() == "jax":
        return programs[key](
            [variable.value for variable in variables], tensors
        )
    return programs[key](tensors)


def _compile(
    function: Callable[..., Any], model: Callable[[], Any], sampler: Any
) -> Callable[..., Any]:
    if keras.backend.backend() == "jax":
        import jax

        def stateless(values: list[Tensor], tensors: Any) -> Any:
            mapping = zip(model().variables, values, strict=True)
            with keras.StatelessScope(mapping):
                return function(model(), sampler, *tensors)

        return jax.jit(stateless)
    import tensorflow as tf

    return tf.function(
        lambda tensors: function(model(), sampler, *tensors),
        jit_compile=True,
        autograph=False,
    )


def loop(
    condition: Callable[..., Tensor],
    body: Callable[..., tuple[Any, ...]],
    variables: tuple[Any, ...],
    most: Tensor,
) -> tuple[Any, ...]:
    """Returns the variables of a loop after its last step.

    Args:
        condition: of the variables, whether to go on. On torch some steps may
            follow after it has become false.
        body: from the variables to those after a step.
        variables: structures of tensors.
        most: int tensor of shape `()`. The condition is false after as many
            steps.
    """
    if keras.backend.backend() != "torch":
        return ops.while_loop(condition, body, variables)
    for step in range(int(most)):
        if step % _STEPS_BETWEEN_LOOKS == 0 and not condition(*variables):
            break
        variables = body(*variables)
    return variables
