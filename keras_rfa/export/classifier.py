"""SavedModels that answer texts or token ids with the names of classes."""

import os
from collections.abc import Sequence
from typing import Any

import keras

from keras_rfa.export.new_directory import new_directory
from keras_rfa.export.serving_model import as_tensorflow, clone_for_serving
from keras_rfa.models.classifier_model import check_classifier, vocabulary_size

Tensor = Any


def export_classifier(
    model: keras.Model,
    tokenizer: Any,
    class_names: Sequence[str],
    path: str | os.PathLike[str],
    *,
    multi_label: bool = False,
    overwrite: bool = False,
) -> None:
    """Writes a classifier as a SavedModel that answers raw text.

    The SavedModel has two signatures. Batch size and length are free, and the
    numbers are float32 whatever the dtype policy of training.

    | signature         | takes                                                |
    | ----------------- | ---------------------------------------------------- |
    | `serving_default` | `text`: strings `(b,)`                               |
    | `token_ids`       | `token_ids`: int32 `(b, t)`, `lengths`: int32 `(b,)` |

    | both give         |                                                      |
    | ----------------- | ---------------------------------------------------- |
    | `probabilities`   | float32 `(b, num_classes)`                           |
    | `class_names`     | strings `(b, num_classes)`, in order                 |
    | `label`           | strings `(b,)`; not with `multi_label`               |

    Every output has a row for each row of the batch, so that servers may put
    requests together: an answer does not depend on what else is in the batch.
    `lengths` says how many ids of a row are real. What stands behind them is
    replaced by padding, 0, since servers fill requests of different lengths
    with ids of their own choice. Documents are cut to the `max_length` of the
    tokenizer, in both signatures.

    A text without a token gets finite probabilities. An id that the model does
    not have, or a length that is not in `[0, t]`, is an error of the whole
    batch. Every text is valid, so that callers who can not be trusted should
    send texts.

    It loads wherever TensorFlow is installed and, for tokenizers of
    TensorFlow Text, after `import tensorflow_text`. It holds the matrices of
    inference, not the pools they were drawn from, and assigns no variable.
    From the TensorFlow backend, all operations are those that any TensorFlow
    has. From the JAX backend the model is one operation `XlaCallModule`, which
    XLA compiles anew for each shape, and which a model server runs on a CPU
    only if it was started with `--xla_cpu_compilation_enabled=true`.

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
        multi_label: bool. `False`: probabilities are those of a softmax, and
            sum to 1. `True`: each is a sigmoid for itself.
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
    _check_backend()
    tf = _import_tensorflow()
    check_classifier(model, tokenizer, class_names)
    with new_directory(path, overwrite=overwrite) as directory:
        logits, variables = as_tensorflow(tf, clone_for_serving(model))
        names = tf.constant(list(class_names))
        limit = vocabulary_size(model)
        max_length = getattr(tokenizer, "max_length", None)

        def classify(token_ids: Tensor) -> dict[str, Tensor]:
            token_ids = token_ids[:, :max_length]
            if limit is not None:
                message = f"`token_ids` must be from 0 to {limit - 1}"
                token_ids = _in_range(tf, token_ids, limit - 1, message)
            scores = logits(token_ids)
            rows = tf.shape(scores)[0]
            outputs = {"class_names": tf.tile(names[None], [rows, 1])}
            if multi_label:
                return {**outputs, "probabilities": tf.math.sigmoid(scores)}
            return {
                **outputs,
                "probabilities": tf.nn.softmax(scores),
                "label": tf.gather(names, tf.argmax(scores, axis=-1)),
            }

        def classify_ids(
            token_ids: Tensor, lengths: Tensor
        ) -> dict[str, Tensor]:
            rows, steps = tf.shape(token_ids)[0], tf.shape(token_ids)[1]
            message = "`lengths` must have an entry for each row of `token_ids`"
            fits = tf.equal(tf.size(lengths), rows)
            lengths = _if_true(tf, fits, lengths, [message])
            message = "`lengths` must be from 0 to the columns of `token_ids`"
            lengths = _in_range(tf, lengths, steps, message)
            is_real = tf.sequence_mask(lengths, steps)
            return module.classify(tf.where(is_real, token_ids, 0))

        def classify_text(text: Tensor) -> dict[str, Tensor]:
            return module.classify(tokenizer(text))

        def graph(function: Any, **inputs: Any) -> Any:
            specs = [
                tf.TensorSpec(shape, dtype, name)
                for name, (shape, dtype) in inputs.items()
            ]
            return tf.function(function, input_signature=specs, autograph=False)

        module = tf.Module()
        module.variables_of_the_model = variables
        ids = ((None, None), tf.int32)
        module.classify = graph(classify, token_ids=ids)
        module.token_ids = graph(
            classify_ids, token_ids=ids, lengths=((None,), tf.int32)
        )
        module.text = graph(classify_text, text=((None,), tf.string))
        tf.saved_model.save(
            module,
            directory,
            signatures={
                "serving_default": module.text,
                "token_ids": module.token_ids,
            },
            # Nobody trains what is served.
            options=tf.saved_model.SaveOptions(
                experimental_custom_gradients=False
            ),
        )


def _in_range(tf: Any, values: Tensor, largest: Any, message: str) -> Tensor:
    """Returns the values, outside of `[0, largest]` as an error."""
    is_valid = tf.reduce_all((values >= 0) & (values <= largest))
    smallest, greatest = tf.reduce_min(values), tf.reduce_max(values)
    received = ["Received: smallest and largest", smallest, greatest]
    return _if_true(tf, is_valid, values, [message, *received])


def _if_true(
    tf: Any, condition: Tensor, values: Tensor, message: Any
) -> Tensor:
    """Returns the values, which nothing uses before the check."""
    check = tf.raw_ops.Assert(condition=condition, data=message)
    with tf.control_dependencies([check]):
        return tf.identity(values)


def _check_backend() -> None:
    if keras.backend.backend() not in ("tensorflow", "jax"):
        raise ValueError(
            "SavedModels are written from the TensorFlow and JAX backends. "
            "Save the model with `model.save('model.keras')`, and load and "
            "export it with KERAS_BACKEND=tensorflow. "
            f"Received: backend {keras.backend.backend()!r}"
        )


def _import_tensorflow() -> Any:
    try:
        import tensorflow
    except ImportError as error:
        raise ImportError(
            "Writing a SavedModel needs TensorFlow, whatever the backend. "
            'Install it with `pip install "keras_rfa[tensorflow]"`.'
        ) from error
    return tensorflow
