"""SavedModels that translate."""

import os
from typing import Any

import keras

from keras_rfa.export import graphs
from keras_rfa.export.continuation import continue_rows
from keras_rfa.export.new_directory import new_directory
from keras_rfa.export.serving_model import clone_for_serving
from keras_rfa.export.streaming_graph import (
    FlatState,
    StreamingGraph,
    room_for,
)
from keras_rfa.export.streaming_signatures import (
    advance,
    at_least_a_row,
    check_streaming,
    check_to_text,
    check_tokenizer,
    check_tokens,
    step_signature,
)
from keras_rfa.models.translator import Translator
from keras_rfa.ops.checks import check_positive

Tensor = Any


def export_translator(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    source_tokenizer: Any = None,
    target_tokenizer: Any = None,
    start_token_id: int | None = None,
    end_token_id: int | None = None,
    max_length: int = 256,
    overwrite: bool = False,
) -> None:
    """Writes a translator as a SavedModel that answers raw text.

    It has the signatures `prefill` and `step`, with which a program chooses
    the tokens itself, and with tokenizers `serving_default`, which translates
    by a loop inside of the graph. Batch size and length are free, and the
    numbers are float32 whatever the dtype policy of training.

    | signature         | takes                                                |
    | ----------------- | ---------------------------------------------------- |
    | `prefill`         | `token_ids`: int32 `(b, s)`, those of the source,    |
    |                   | `lengths`: int32 `(b,)`                              |
    | `step`            | `token_ids`: int32 `(b, t)`, of the target, and the  |
    |                   | state                                                |
    | `serving_default` | `text`: strings `(b,)`                               |

    | gives             |                                                      |
    | ----------------- | ---------------------------------------------------- |
    | `prefill`, `step` | `logits`: float32 `(b, v)`, and the state            |
    | `serving_default` | `text`: strings `(b,)`, the translations             |

    `prefill` reads the source and the start token. The state is some tensors
    `state_...` with a row for each row of the batch, which go into the next
    `step` as they came. The logits are those of the token after the last of
    each row. `step` takes one or more tokens; 0 is padding at the ends of a
    row, and a row without a token keeps its state and has logits that are no
    answer.

    `serving_default` chooses the most probable token until the end token or
    `max_length`. A translation does not depend on what else is in the batch,
    so that servers may put requests together. That of a text without a token
    is empty. Ids, lengths and states that do not fit are an error of the
    whole batch.

    It loads wherever TensorFlow is installed and, for tokenizers of
    TensorFlow Text, after `import tensorflow_text`. It assigns no variable.
    From the JAX backend the model is operations `XlaCallModule`, as in
    `keras_rfa.export.export_classifier`.

    Args:
        model: `keras_rfa.models.translator`, or a model that Keras can
            serialise and that has its methods
            `get_initial_state(source_ids, max_length=None)` and
            `call_with_state(token_ids, state, training=False)`. It may come
            from the TensorFlow or the JAX backend, and does not change.
        source_tokenizer: `keras_rfa.text.SentencePieceTokenizer`,
            `WordpieceTokenizer` or `ByteTokenizer`, or a callable from strings
            `(b,)` to int32 ids `(b, s)` that works in a TensorFlow graph. It
            makes of a source what training made of it, and its `max_length`
            cuts sources, in all signatures. `None`: no texts.
        target_tokenizer: one of the same, or an object with a method `to_text`
            from ids to strings that works in a TensorFlow graph. Pass both or
            none.
        start_token_id: int. The token before each target. By default the
            `start_token_id` of the target tokenizer.
        end_token_id: int. The token that ends a translation. By default the
            `end_token_id` of the target tokenizer.
        max_length: int. The most tokens of a translation, start and end
            included. Softmax attention has room for so many.
        overwrite: bool. Whether to replace a directory that exists.

    Raises:
        ValueError: if an argument does not fit, if a tokenizer has more ids
            than the model, or on a backend that can not export.
        FileExistsError: if `path` exists and `overwrite` is `False`.
        ImportError: if TensorFlow is not installed.

    Example:

    >>> keras_rfa.export.export_translator(
    ...     model, "exported", source_tokenizer=source,
    ...     target_tokenizer=target, max_length=100)
    >>> served = tf.saved_model.load("exported").signatures
    >>> served["serving_default"](text=tf.constant(["A film."]))["text"]
    """
    tf = graphs.import_tensorflow()
    check_streaming(model, translates=True)
    max_length = check_positive("max_length", max_length, 2)
    with new_directory(path, overwrite=overwrite) as directory:
        clone = clone_for_serving(model)

        def begin(ids: Tensor) -> Any:
            return clone.get_initial_state(ids, max_length=room_for(max_length))

        graph = StreamingGraph(tf, clone, begin)
        limit = _source_vocabulary_size(clone)
        _check_tokenizers(
            source_tokenizer, target_tokenizer, limit, graph.vocabulary_size
        )
        start, end = (
            _token(name, given, target_tokenizer, graph.vocabulary_size)
            for name, given in (
                ("start_token_id", start_token_id),
                ("end_token_id", end_token_id),
            )
        )
        cut = getattr(source_tokenizer, "max_length", None)

        def read_source(ids: Tensor) -> tuple[Tensor, FlatState]:
            """Returns the start tokens, and the state before them."""
            ids = graphs.ids_in_range(tf, ids, limit)
            return tf.fill([tf.shape(ids)[0], 1], start), graph.begin(ids)

        def prefill(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
            ids = graphs.real_ids(tf, **inputs)[:, :cut]
            rows = tf.shape(ids)[0]
            first, state = read_source(at_least_a_row(tf, ids))
            return advance(graph, first, state, rows)

        def translate(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
            rows = tf.shape(inputs["text"])[0]
            ids = source_tokenizer(at_least_a_row(tf, inputs["text"]))
            first, state = read_source(ids)
            has_tokens = tf.reduce_any(ids != 0, axis=1)
            remaining = tf.where(has_tokens, max_length - 1, 0)
            written = continue_rows(
                graph, first[:, 0], state, remaining, [end], target_tokenizer
            )
            return {"text": target_tokenizer.to_text(written)[:rows]}

        row = (None,)
        signatures = {
            "prefill": graphs.graph(
                tf,
                prefill,
                token_ids=((None, None), tf.int32),
                lengths=(row, tf.int32),
            ),
            "step": step_signature(graph),
        }
        if source_tokenizer is not None:
            signatures["serving_default"] = graphs.graph(
                tf, translate, text=(row, tf.string)
            )
        graphs.save(tf, directory, graph.variables, signatures)


def _check_tokenizers(
    source: Any, target: Any, source_limit: int | None, target_limit: int
) -> None:
    if (source is None) != (target is None):
        raise ValueError(
            "Pass both `source_tokenizer` and `target_tokenizer`, or none. "
            f"Received: source_tokenizer={source!r}, "
            f"target_tokenizer={target!r}"
        )
    if source is not None:
        check_tokenizer("source_tokenizer", source, source_limit)
        check_tokenizer("target_tokenizer", target, target_limit)
        check_to_text("target_tokenizer", target)


def _token(name: str, given: Any, tokenizer: Any, limit: int) -> int:
    """Returns a token that was given, or else that of the tokenizer."""
    if given is None:
        given = getattr(tokenizer, name, None)
    tokens = check_tokens(name, given, limit)
    if len(tokens) != 1:
        raise ValueError(
            f"`{name}` must be a token, since the target tokenizer names none: "
            "translations begin and end with one. "
            f"Received: {name}={given!r}"
        )
    return tokens[0]


def _source_vocabulary_size(model: Any) -> int | None:
    """Returns how many source ids a model has, if it says so."""
    if isinstance(model, Translator):
        return int(model.encoder_layers()[0].input_dim)
    return None
