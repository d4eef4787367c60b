"""A model for inference alone, and the same as a function of TensorFlow."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import keras

Tensor = Any


def clone_for_serving(model: keras.Model) -> keras.Model:
    """Copies a model to float32 and without what only training needs.

    Its pools hold one matrix a head, the one of inference.

    Args:
        model: a model that Keras can serialise.

    Returns:
        A model with the same answers at inference.

    Example:

    >>> keras_rfa.export.clone_for_serving(model).save("serving.keras")
    """
    config = _for_serving(keras.saving.serialize_keras_object(model))
    clone = keras.saving.deserialize_keras_object(config)
    with tempfile.TemporaryDirectory() as directory:
        weights = os.path.join(directory, "model.weights.h5")
        model.save_weights(weights)
        clone.load_weights(weights)
    return clone


def _for_serving(config: Any) -> Any:
    """Rewrites a serialised object, and all that it contains."""
    if isinstance(config, list | tuple):
        return [_for_serving(item) for item in config]
    if not isinstance(config, dict):
        return config
    # Nothing will be trained, by losses and metrics that may be unknown here.
    config = {
        key: _for_serving(value)
        for key, value in config.items()
        if key != "compile_config"
    }
    if config.get("class_name") == "DTypePolicy":
        config["config"]["name"] = "float32"
    if str(config.get("registered_name")).startswith("keras_rfa>"):
        for name, value in (("pool_size", 1), ("stateful", False)):
            if name in config["config"]:
                config["config"][name] = value
    return config


def as_tensorflow(
    tf: Any, model: keras.Model
) -> tuple[Callable[[Tensor], Tensor], list[Any]]:
    """Returns a model as a function of TensorFlow, and its variables.

    Args:
        tf: the module TensorFlow.
        model: a model from token ids `(b, t)`, of the TensorFlow or the JAX
            backend.
    """
    if keras.backend.backend() == "tensorflow":
        variables = [weight.value for weight in model.weights]
        return lambda token_ids: model(token_ids, training=False), variables

    from jax.experimental import jax2tf

    def stateless(weights: tuple[list[Any], list[Any]], ids: Any) -> Any:
        # Keras' own export also writes back what a call returns as state.
        logits, _ = model.stateless_call(*weights, ids, training=False)
        return logits

    weights = (
        [tf.Variable(v) for v in _arrays(model.trainable_variables)],
        [tf.Variable(v) for v in _arrays(model.non_trainable_variables)],
    )
    converted = jax2tf.convert(
        stateless,
        polymorphic_shapes=[None, "(batch, length)"],
        native_serialization_platforms=("cpu", "cuda", "tpu"),
        with_gradient=False,
    )

    def logits(token_ids: Tensor) -> Tensor:
        # A size that JAX does not know is at least 1.
        rows, length = tf.shape(token_ids)[0], tf.shape(token_ids)[1]
        missing = [[0, tf.maximum(1 - size, 0)] for size in (rows, length)]
        return converted(weights, tf.pad(token_ids, missing))[:rows]

    return logits, [*weights[0], *weights[1]]


def _arrays(variables: list[Any]) -> list[Any]:
    return [keras.ops.convert_to_numpy(variable) for variable in variables]
