"""What all SavedModels of the package share: checks, and how one is written."""

from collections.abc import Callable
from typing import Any

import keras

Tensor = Any


def import_tensorflow() -> Any:
    """Returns the module TensorFlow, or says why nothing can be written."""
    if keras.backend.backend() not in ("tensorflow", "jax"):
        raise ValueError(
            "SavedModels are written from the TensorFlow and JAX backends. "
            "Save the model with `model.save('model.keras')`, and load and "
            "export it with KERAS_BACKEND=tensorflow. "
            f"Received: backend {keras.backend.backend()!r}"
        )
    try:
        import tensorflow
    except ImportError as error:
        raise ImportError(
            "Writing a SavedModel needs TensorFlow, whatever the backend. "
            'Install it with `pip install "keras_rfa[tensorflow]"`.'
        ) from error
    return tensorflow


def if_true(tf: Any, condition: Tensor, values: Tensor, message: Any) -> Tensor:
    """Returns the values, which nothing uses before the check."""
    check = tf.raw_ops.Assert(condition=condition, data=message)
    with tf.control_dependencies([check]):
        return tf.identity(values)


def in_range(tf: Any, values: Tensor, largest: Any, message: str) -> Tensor:
    """Returns the values, outside of `[0, largest]` as an error."""
    is_valid = tf.reduce_all((values >= 0) & (values <= largest))
    smallest, greatest = tf.reduce_min(values), tf.reduce_max(values)
    received = ["Received: smallest and largest", smallest, greatest]
    return if_true(tf, is_valid, values, [message, *received])


def ids_in_range(tf: Any, token_ids: Tensor, limit: int | None) -> Tensor:
    """Returns the ids, those that a model does not have as an error."""
    if limit is None:
        return token_ids
    message = f"`token_ids` must be from 0 to {limit - 1}"
    return in_range(tf, token_ids, limit - 1, message)


def a_row_for_each(
    tf: Any, name: str, values: Tensor, token_ids: Tensor
) -> Tensor:
    """Returns the values, another number of rows as an error."""
    message = f"`{name}` must have an entry for each row of `token_ids`"
    fits = tf.equal(tf.shape(values)[0], tf.shape(token_ids)[0])
    return if_true(tf, fits, values, [message])


def real_ids(tf: Any, token_ids: Tensor, lengths: Tensor) -> Tensor:
    """Returns ids `(b, t)` with 0 behind the length of each row."""
    steps = tf.shape(token_ids)[1]
    lengths = a_row_for_each(tf, "lengths", lengths, token_ids)
    message = "`lengths` must be from 0 to the columns of `token_ids`"
    lengths = in_range(tf, lengths, steps, message)
    return tf.where(tf.sequence_mask(lengths, steps), token_ids, 0)


def graph(tf: Any, function: Callable[..., Any], **inputs: Any) -> Any:
    """Returns a function of tensors as one that a SavedModel holds.

    Args:
        tf: the module TensorFlow.
        function: takes one dict of tensors, by their names.
        **inputs: pairs of shape and dtype.
    """
    specs = {
        name: tf.TensorSpec(shape, dtype, name)
        for name, (shape, dtype) in inputs.items()
    }
    return tf.function(function, input_signature=[specs], autograph=False)


def save(
    tf: Any, directory: str, variables: list[Any], signatures: dict[str, Any]
) -> None:
    """Writes a SavedModel.

    Args:
        tf: the module TensorFlow.
        directory: where to.
        variables: what the functions read.
        signatures: functions of `graph`, by their names.
    """
    module = tf.Module()
    module.variables_of_the_model = variables
    module.functions = signatures
    tf.saved_model.save(
        module,
        directory,
        signatures=signatures,
        # Nobody trains what is served.
        options=tf.saved_model.SaveOptions(experimental_custom_gradients=False),
    )
