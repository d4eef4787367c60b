"""Serving: SavedModels that run where `keras_rfa` is not installed."""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from keras_rfa.ops.checks import check_shape

Tensor = Any


def export_classifier(
    model: keras.Model,
    tokenizer: Any,
    class_names: Sequence[str],
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> None:
    """Writes a classifier as a SavedModel that answers raw text.

    The SavedModel has two signatures. Batch size and length are free, and the
    numbers are float32 whatever the dtype policy of training.

    | signature         | takes                              |
    | ----------------- | ---------------------------------- |
    | `serving_default` | `text`: strings `(b,)`             |
    | `token_ids`       | `token_ids`: int32 `(b, t)`, 0 pad |

    Both give `probabilities`, float32 `(b, num_classes)`, and `label`,
    strings `(b,)`. A text without a token gets finite probabilities, and an
    id that the model does not have is an error.

    It loads wherever TensorFlow is installed and, for tokenizers of
    TensorFlow Text, after `import tensorflow_text`. It holds the matrices of
    inference, not the pools they were drawn from, and assigns no variable.

    Args:
        model: a Functional model from token ids `(b, t)` to logits
            `(b, num_classes)`, such as
            `keras_rfa.models.document_classifier` builds. It may come from
            the TensorFlow or the JAX backend, and does not change.
        tokenizer: `keras_rfa.text.WordpieceTokenizer` or `ByteTokenizer`, or
            a callable from a tensor of strings `(b,)` to int32 ids `(b, t)`
            that works in a TensorFlow graph.
        class_names: sequence of strings, the names of the logits in order.
        path: where to write. The directory appears whole or not at all.
        overwrite: bool. Whether to replace a directory that exists.

    Raises:
        ValueError: if the class names do not fit the model, if the tokenizer
            has more ids than the model, or on a backend that can not export.
        FileExistsError: if `path` exists and `overwrite` is `False`.
        ImportError: if TensorFlow is not installed.

    Example:

    >>> keras_rfa.export.export_classifier(
    ...     model, tokenizer, ["negative", "positive"], "exported")
    >>> served = tf.saved_model.load("exported")
    >>> served.signatures["serving_default"](text=tf.constant(["Splendid."]))
    """
    tf = _import_tensorflow()
    _check_model(model, tokenizer, class_names)
    with new_directory(path, overwrite=overwrite) as directory:
        serving_model = clone_for_serving(model)
        logits, variables = _as_tensorflow(tf, serving_model)
        names = tf.constant(list(class_names))
        limit = _vocabulary_size(model)

        def answer(token_ids: Tensor) -> dict[str, Tensor]:
            if limit is not None:
                message = f"token_ids must be from 0 to {limit - 1}"
                known = (token_ids >= 0) & (token_ids < limit)
                tf.debugging.Assert(tf.reduce_all(known), [message])
            scores = logits(token_ids)
            return {
                "probabilities": tf.nn.softmax(scores),
                "label": tf.gather(names, tf.argmax(scores, axis=-1)),
            }

        token_ids = tf.TensorSpec((None, None), tf.int32, name="token_ids")
        text = tf.TensorSpec((None,), tf.string, name="text")
        module = tf.Module()
        module.variables_of_the_model = variables
        module.token_ids = tf.function(
            answer, input_signature=[token_ids], autograph=False
        )
        module.text = tf.function(
            lambda text: module.token_ids(tokenizer(text)),
            input_signature=[text],
            autograph=False,
        )
        tf.saved_model.save(
            module,
            directory,
            signatures={
                "serving_default": module.text,
                "token_ids": module.token_ids,
            },
        )


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
    config = {key: _for_serving(value) for key, value in config.items()}
    if config.get("class_name") == "DTypePolicy":
        config["config"]["name"] = "float32"
    if str(config.get("registered_name")).startswith("keras_rfa>"):
        for name, value in (("pool_size", 1), ("stateful", False)):
            if name in config["config"]:
                config["config"][name] = value
    return config


def _as_tensorflow(
    tf: Any, model: keras.Model
) -> tuple[Callable[[Tensor], Tensor], list[Any]]:
    """Returns a model as a function of TensorFlow, and its variables."""
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


@contextlib.contextmanager
def new_directory(
    path: str | os.PathLike[str], *, overwrite: bool = False
) -> Iterator[str]:
    """Gives a temporary directory that takes its place when all is written.

    Args:
        path: the directory to make.
        overwrite: bool. Whether to replace a directory that exists.

    Raises:
        FileExistsError: at once, if `path` exists and is not to be replaced,
            or if it is no directory.

    Example:

    >>> with keras_rfa.export.new_directory("results") as directory:
    ...     model.save(f"{directory}/model.keras")
    """
    target = pathlib.Path(path)
    if os.path.lexists(target):
        if target.is_symlink() or not target.is_dir():
            raise FileExistsError(
                f"{str(target)!r} is no directory, and is not replaced by "
                "one. Choose another path."
            )
        if not overwrite:
            raise FileExistsError(
                f"{str(target)!r} exists. Choose another path, or pass "
                "`overwrite=True` to replace it."
            )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        written = os.path.join(temporary, "new")
        os.mkdir(written)
        yield written
        old = os.path.join(temporary, "old")
        if target.exists():
            os.rename(target, old)
        try:
            os.rename(written, target)
        except OSError:
            if os.path.exists(old):
                os.rename(old, target)
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_model(
    model: keras.Model, tokenizer: Any, class_names: Sequence[str]
) -> None:
    if keras.backend.backend() not in ("tensorflow", "jax"):
        raise ValueError(
            "SavedModels are written from the TensorFlow and JAX backends. "
            "Save the model with `model.save('model.keras')`, and load and "
            "export it with KERAS_BACKEND=tensorflow. "
            f"Received: backend {keras.backend.backend()!r}"
        )
    check_shape("logits", model.output_shape, batch=None, num_classes=None)
    num_classes = model.output_shape[-1]
    is_sequence = isinstance(class_names, Sequence)
    if (
        not is_sequence
        or isinstance(class_names, str)
        or len(class_names) != num_classes
        or not all(isinstance(name, str) for name in class_names)
    ):
        raise ValueError(
            f"`class_names` must be a list of {num_classes} strings, one for "
            f"each class of the model. Received: class_names={class_names!r}"
        )
    if len(set(class_names)) != num_classes:
        raise ValueError(
            "`class_names` must differ from each other. "
            f"Received: class_names={class_names!r}"
        )
    tokens = getattr(tokenizer, "vocabulary_size", 0)
    limit = _vocabulary_size(model)
    if limit is not None and limit < tokens:
        raise ValueError(
            f"The tokenizer has {tokens} ids and the model only {limit}. "
            "Build the model with "
            "`vocabulary_size=tokenizer.vocabulary_size`."
        )


def _vocabulary_size(model: keras.Model) -> int | None:
    """Returns how many ids the model has, by the embedding that reads them."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            size = _vocabulary_size(layer)
            if size is not None:
                return size
        elif (
            isinstance(layer, keras.layers.Embedding)
            and layer.input is model.inputs[0]
        ):
            return int(layer.input_dim)
    return None


def _import_tensorflow() -> Any:
    try:
        import tensorflow
    except ImportError as error:
        raise ImportError(
            "Writing a SavedModel needs TensorFlow, whatever the backend. "
            'Install it with `pip install "keras_rfa[tensorflow]"`.'
        ) from error
    return tensorflow
