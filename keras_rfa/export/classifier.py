"""SavedModels that answer texts or token ids with the names of classes."""

import os
from collections.abc import Sequence
from typing import Any

import keras

from keras_rfa.export import graphs
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
    tf = graphs.import_tensorflow()
    check_classifier(model, tokenizer, class_names)
    with new_directory(path, overwrite=overwrite) as directory:
        logits, variables = as_tensorflow(tf, clone_for_serving(model))
        names = tf.constant(list(class_names))
        limit = vocabulary_size(model)
        max_length = getattr(tokenizer, "max_length", None)

        def classify(token_ids: Tensor) -> dict[str, Tensor]:
            token_ids = token_ids[:, :max_length]
            token_ids = graphs.ids_in_range(tf, token_ids, limit)
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

        ids = ((None, None), tf.int32)
        shared = tf.function(
            classify,
            input_signature=[tf.TensorSpec(*ids, "token_ids")],
            autograph=False,
        )

        def classify_ids(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
            return shared(graphs.real_ids(tf, **inputs))

        def classify_text(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
            return shared(tokenizer(inputs["text"]))

        signatures = {
            "serving_default": graphs.graph(
                tf, classify_text, text=((None,), tf.string)
            ),
            "token_ids": graphs.graph(
                tf, classify_ids, token_ids=ids, lengths=((None,), tf.int32)
            ),
        }
        graphs.save(tf, directory, variables, signatures)
