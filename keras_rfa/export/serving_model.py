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
        settings = config["config"]
        if settings.get("stateful") and "layers" in settings:
            # Only the state of a model is one of so many rows.
            for layer in settings["layers"]:
                if "batch_shape" in layer["config"]:
                    layer["config"]["batch_shape"][0] = None
        for name, value in (("pool_size", 1), ("stateful", False)):
            if name in settings:
                settings[name] = value
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
    convert, variables = converter(tf, model)
    call = convert(lambda ids: model(ids, training=False), ["(batch, length)"])
    if keras.backend.backend() == "tensorflow":
        return call, variables

    def logits(token_ids: Tensor) -> Tensor:
        # A size that JAX does not know is at least 1.
        rows, length = tf.shape(token_ids)[0], tf.shape(token_ids)[1]
        missing = [[0, tf.maximum(1 - size, 0)] for size in (rows, length)]
        return call(tf.pad(token_ids, missing))[:rows]

    return logits, variables


def converter(
    tf: Any, model: keras.Model
) -> tuple[Callable[..., Callable[..., Any]], list[Any]]:
    """Returns what makes functions of TensorFlow, and the variables they read.

    Args:
        tf: the module TensorFlow.
        model: a model of the TensorFlow or the JAX backend.

    Returns:
        A function, and the variables of the model. The function takes another
        one, that computes with tensors of the backend and with the model, and
        the shapes of its arguments, such as `"(batch, 4, length)"`. On JAX,
        sizes that are named must be at least 1.
    """
    if keras.backend.backend() == "tensorflow":
        variables = [weight.value for weight in model.weights]
        return lambda function, shapes: function, variables

    from jax.experimental import jax2tf

    weights = [
        tf.Variable(keras.ops.convert_to_numpy(variable))
        for variable in model.variables
    ]

    def convert(
        function: Callable[..., Any], shapes: list[str]
    ) -> Callable[..., Any]:
        def stateless(values: list[Any], *tensors: Any) -> Any:
            # Keras' own export also writes back what a call changes.
            mapping = zip(model.variables, values, strict=True)
            with keras.StatelessScope(mapping):
                return function(*tensors)

        converted = jax2tf.convert(
            stateless,
            polymorphic_shapes=[None, *shapes],
            native_serialization_platforms=("cpu", "cuda", "tpu"),
            with_gradient=False,
        )
        return lambda *tensors: converted(weights, *tensors)

    return convert, weights


def shapes_of(function: Callable[[Tensor], Any], tensor: Any) -> Any:
    """Returns what a function gives, or only the shapes and dtypes of that.

    JAX computes nothing for it, which would be compiled operation by operation.
    """
    if keras.backend.backend() == "jax":
        import jax

        return jax.eval_shape(function, tensor)
    return function(tensor)
