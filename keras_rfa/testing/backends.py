"""What is different from backend to backend when a function is tested."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

Tensor = Any


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function of tensors, where the backend compiles.

    That is `jax.jit`, or `tf.function(jit_compile=True)`; torch runs it as
    it is.

    Args:
        function: from tensors, or structures of them, to tensors.

    Returns:
        A function from arrays to float64, int or bool NumPy arrays.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        function = jax.jit(function)
    elif backend == "tensorflow":
        import tensorflow as tf

        function = tf.function(
            function,
            jit_compile=True,
            reduce_retracing=True,
            autograph=False,
        )

    def run(*arrays: Any) -> Any:
        return as_numpy(function(*as_tensors(arrays)))

    return run


def differentiated(
    function: Callable[..., Any], variables: list[Any]
) -> Callable[..., Any]:
    """Differentiates a function by its first argument and by variables.

    Args:
        function: `(x, *others) -> (value, extra)`, whose value is a scalar
            and whose extra is what else it computes.
        variables: list of Keras variables that it depends on.

    Returns:
        A function `(x, *others) -> (value, extra, gradient, gradients)` that
        can be compiled: the gradients by `x` and by each variable.
    """
    backend = keras.backend.backend()

    def with_jax(x: Tensor, *others: Any) -> Any:
        import jax

        def stateless(x: Tensor, values: list[Tensor]) -> Any:
            mapping = list(zip(variables, values, strict=True))
            with keras.StatelessScope(state_mapping=mapping):
                return function(x, *others)

        (value, extra), (gradient, gradients) = jax.value_and_grad(
            stateless, argnums=(0, 1), has_aux=True
        )(x, [variable.value for variable in variables])
        return value, extra, gradient, gradients

    def with_tensorflow(x: Tensor, *others: Any) -> Any:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(x)
            value, extra = function(x, *others)
        gradient, gradients = tape.gradient(
            value,
            (x, [variable.value for variable in variables]),
            unconnected_gradients="zero",
        )
        return value, extra, gradient, gradients

    def with_torch(x: Tensor, *others: Any) -> Any:
        import torch

        x = x.detach().requires_grad_()
        value, extra = function(x, *others)
        gradient, *gradients = torch.autograd.grad(
            value,
            [x, *(variable.value for variable in variables)],
            materialize_grads=True,
        )
        return value, extra, gradient, gradients

    return {
        "jax": with_jax,
        "tensorflow": with_tensorflow,
        "torch": with_torch,
    }[backend]


def operations(function: Callable[..., Any], *arrays: Any) -> tuple[int, int]:
    """Counts the operations of a function and the bytes that they write.

    They are those of the traced program, without regard to what a compiler
    makes of it; on torch, those that run.

    Args:
        function: from tensors to tensors.
        *arrays: its arguments.

    Returns:
        The number of operations and the sum of the sizes of their outputs.
    """
    tensors = as_tensors(arrays)
    count_of = {
        "jax": _jax_outputs,
        "tensorflow": _tensorflow_outputs,
        "torch": _torch_outputs,
    }[keras.backend.backend()]
    sizes = count_of(function, tensors)
    return len(sizes), sum(sizes)


def peak_memory(function: Callable[..., Any], *arrays: Any) -> int:
    """Returns the bytes that a function needs besides inputs and outputs.

    On JAX it is what the compiler allocates. The other backends do not tell:
    there it is all that the operations write, which bounds it from above.
    """
    if keras.backend.backend() != "jax":
        return operations(function, *arrays)[1]
    import jax

    program = jax.jit(function).lower(*as_tensors(arrays)).compile()
    return int(program.memory_analysis().temp_size_in_bytes)


def _jax_outputs(function: Callable[..., Any], tensors: Any) -> list[int]:
    import jax

    sizes: list[int] = []

    def visit(jaxpr: Any) -> None:
        for equation in jaxpr.eqns:
            inner = [
                getattr(value, "jaxpr", value)
                for value in equation.params.values()
            ]
            inner = [value for value in inner if hasattr(value, "eqns")]
            for value in inner:
                visit(value)
            if not inner:
                sizes.append(
                    sum(
                        output.aval.size * output.aval.dtype.itemsize
                        for output in equation.outvars
                    )
                )

    visit(jax.make_jaxpr(function)(*tensors).jaxpr)
    return sizes


def _tensorflow_outputs(
    function: Callable[..., Any], tensors: Any
) -> list[int]:
    import tensorflow as tf

    program = tf.function(function, autograph=False)
    graph = program.get_concrete_function(*tensors).graph
    return [
        sum(
            (output.shape.num_elements() or 0) * output.dtype.size
            for output in operation.outputs
            if output.dtype.is_floating
        )
        for operation in graph.get_operations()
    ]


def _torch_outputs(function: Callable[..., Any], tensors: Any) -> list[int]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes: list[int] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            outputs = operation(*args, **(kwargs or {}))
            sizes.append(
                sum(
                    output.numel() * output.element_size()
                    for output in keras.tree.flatten(outputs)
                    if isinstance(output, torch.Tensor)
                )
            )
            return outputs

    with Recorder():
        function(*tensors)
    return sizes


def as_tensors(arrays: Any) -> Any:
    """Converts a structure of arrays to tensors; `None` stays."""
    return keras.tree.map_structure(
        lambda x: None if x is None else ops.convert_to_tensor(x), arrays
    )


def as_numpy(tensors: Any) -> Any:
    """Converts a structure of tensors to arrays, floats to float64."""

    def convert(tensor: Any) -> Any:
        if tensor is None:
            return None
        is_float = keras.backend.is_float_dtype(
            keras.backend.standardize_dtype(tensor.dtype)
        )
        array = ops.convert_to_numpy(tensor)
        return array.astype("float64") if is_float else array

    return keras.tree.map_structure(convert, tensors)
