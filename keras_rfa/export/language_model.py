"""SavedModels that continue texts."""

import os
from collections.abc import Callable
from typing import Any

import keras

from keras_rfa.export import graphs
from keras_rfa.export.continuation import check_options, continue_rows
from keras_rfa.export.new_directory import new_directory
from keras_rfa.export.serving_model import clone_for_serving
from keras_rfa.export.streaming_graph import StreamingGraph, room_for
from keras_rfa.export.streaming_signatures import (
    advance,
    at_least_a_row,
    check_streaming,
    check_to_text,
    check_tokenizer,
    check_tokens,
    step_signature,
)
from keras_rfa.ops.checks import check_positive

Tensor = Any


def export_language_model(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    tokenizer: Any = None,
    max_length: int = 1024,
    start_token_id: int | None = None,
    stop_token_ids: Any = None,
    overwrite: bool = False,
) -> None:
    """Writes a language model as a SavedModel that continues raw text.

    It has the signatures `prefill` and `step`, with which a program chooses
    the tokens itself, and with a tokenizer two that write texts, by a loop
    inside of the graph. Batch size and length are free, and the numbers are
    float32 whatever the dtype policy of training.

    | signature         | takes                                                |
    | ----------------- | ---------------------------------------------------- |
    | `prefill`         | `token_ids`: int32 `(b, t)`, `lengths`: int32 `(b,)` |
    | `step`            | `token_ids`: int32 `(b, t)`, and the state           |
    | `serving_default` | `text`: strings `(b,)`                               |
    | `sample`          | `text`, and each `(b,)`: `max_new_tokens` int32,     |
    |                   | `temperature` float32, `seed` int32                  |

    | gives               |                                                    |
    | ------------------- | -------------------------------------------------- |
    | `prefill`, `step`   | `logits`: float32 `(b, v)`, and the state          |
    | `serving_default`,  | `text`: strings `(b,)`, each with what follows it; |
    | `sample`            | `continuation`: strings `(b,)`, what follows alone |

    The state is some tensors `state_...` with a row for each row of the batch,
    which go into the next `step` as they came. The logits are those of the
    token after the last of each row. `step` takes one or more tokens; in
    both signatures 0 is padding at the ends of a row, and a row without a
    token keeps its state and has logits that are no answer.

    `serving_default` chooses the most probable token, and so does `sample`
    where the temperature is 0; above, it divides the logits and draws. Equal
    seeds give equal texts. Neither chooses padding or a token that the
    tokenizer does not have, but to end a row. A row ends at a stop token,
    which its text leaves out, or with `max_length` tokens. What follows a text
    does not depend on what else is in the batch, so that servers may put
    requests together. Nothing follows a text without a token. Ids, lengths and
    states that do not fit are an error of the whole batch.

    It loads wherever TensorFlow is installed and, for tokenizers of
    TensorFlow Text, after `import tensorflow_text`. It assigns no variable.
    From the JAX backend the model is operations `XlaCallModule`, as in
    `keras_rfa.export.export_classifier`.

    Args:
        model: `keras_rfa.models.language_model`, also a stateful one, or a
            model that Keras can serialise and that has its methods
            `get_initial_state(batch_size, max_length=None)` and
            `call_with_state(token_ids, state, training=False)`. It may come
            from the TensorFlow or the JAX backend, and does not change.
        tokenizer: `keras_rfa.text.SentencePieceTokenizer`,
            `WordpieceTokenizer` or `ByteTokenizer`, or a callable from strings
            `(b,)` to int32 ids `(b, t)`, with a method `to_text` back, which
            both work in a TensorFlow graph. `None`: no texts.
        max_length: int. The most tokens of a text and what follows it, those
            of the start included. Of longer texts so many are read, and
            nothing follows. Softmax attention also has room for so many
            tokens in `prefill`, and then as many in `step`.
        start_token_id: int. A token to read before each text, which is no part
            of the answer. By default none but what the tokenizer adds.
        stop_token_ids: int or list of ints, tokens that end a row. By default
            the `end_token_id` of the tokenizer, if it has one.
        overwrite: bool. Whether to replace a directory that exists.

    Raises:
        ValueError: if an argument does not fit, if the tokenizer has more ids
            than the model or ends texts by a token, or on a backend that can
            not export.
        FileExistsError: if `path` exists and `overwrite` is `False`.
        ImportError: if TensorFlow is not installed.

    Example:

    >>> keras_rfa.export.export_language_model(
    ...     model, "exported", tokenizer=tokenizer, max_length=200)
    >>> served = tf.saved_model.load("exported").signatures
    >>> served["serving_default"](text=tf.constant(["The film"]))["text"]

    Or token by token:

    >>> answer = served["prefill"](
    ...     token_ids=tf.constant([[5, 2]]), lengths=tf.constant([2]))
    >>> logits = answer.pop("logits")
    >>> served["step"](token_ids=tf.constant([[9]]), **answer)
    """
    tf = graphs.import_tensorflow()
    check_streaming(model, translates=False)
    max_length = check_positive("max_length", max_length)
    with new_directory(path, overwrite=overwrite) as directory:
        clone = clone_for_serving(model)

        def begin(ids: Tensor) -> Any:
            rows = keras.ops.shape(ids)[0]
            return clone.get_initial_state(
                rows, max_length=room_for(max_length)
            )

        graph = StreamingGraph(tf, clone, begin)
        limit = graph.vocabulary_size
        if stop_token_ids is None:
            stop_token_ids = getattr(tokenizer, "end_token_id", None)
        stops = check_tokens("stop_token_ids", stop_token_ids, limit)
        start = check_tokens("start_token_id", start_token_id, limit)

        def prefill(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
            ids = graphs.real_ids(tf, **inputs)
            ids = graphs.ids_in_range(tf, ids, limit)
            rows = tf.shape(ids)[0]
            ids = at_least_a_row(tf, ids)
            return advance(graph, ids, graph.begin(ids[:, :1]), rows)

        ids = ((None, None), tf.int32)
        row = (None,)
        signatures = {
            "prefill": graphs.graph(
                tf, prefill, token_ids=ids, lengths=(row, tf.int32)
            ),
            "step": step_signature(graph),
        }
        if tokenizer is not None:
            _check_tokenizer(tokenizer, limit)
            continue_texts = _text_function(
                graph, tokenizer, max_length, start, stops
            )
            signatures["serving_default"] = graphs.graph(
                tf,
                lambda inputs: continue_texts(inputs["text"]),
                text=(row, tf.string),
            )
            signatures["sample"] = graphs.graph(
                tf,
                lambda inputs: continue_texts(**inputs),
                text=(row, tf.string),
                max_new_tokens=(row, tf.int32),
                temperature=(row, tf.float32),
                seed=(row, tf.int32),
            )
        graphs.save(tf, directory, graph.variables, signatures)


def _text_function(
    graph: StreamingGraph,
    tokenizer: Any,
    max_length: int,
    start: list[int],
    stops: list[int],
) -> Callable[..., dict[str, Tensor]]:
    """Returns a function from texts `(b,)` to those that go on.

    Its other arguments are those of the signature `sample`.
    """
    tf = graph.tf

    def continue_texts(text: Tensor, **options: Tensor) -> dict[str, Tensor]:
        rows = tf.shape(text)[0]
        options = {
            name: at_least_a_row(tf, values)
            for name, values in check_options(tf, rows, **options).items()
        }
        text = at_least_a_row(tf, text)
        prompts = tokenizer(text)[:, : max_length - len(start)]
        first = tf.tile(tf.constant([start], tf.int32), [tf.shape(text)[0], 1])
        ids = tf.concat([first, prompts], axis=1)
        count = tf.math.count_nonzero(ids, axis=1, dtype=tf.int32)
        remaining = tf.where(count > 0, max_length - count, 0)
        if "max_new_tokens" in options:
            most = options.pop("max_new_tokens")
            remaining = tf.minimum(remaining, most)
        tokens, state = graph.read(ids, graph.begin(ids[:, :1]))
        written = continue_rows(
            graph, tokens, state, remaining, stops, tokenizer, **options
        )
        whole = tokenizer.to_text(tf.concat([prompts, written], axis=1))
        end = tf.strings.length(whole)
        begin = tf.strings.length(tokenizer.to_text(prompts))
        rest = tf.strings.substr(whole, tf.minimum(begin, end), end)
        return {"text": whole[:rows], "continuation": rest[:rows]}

    return continue_texts


def _check_tokenizer(tokenizer: Any, limit: int) -> None:
    check_to_text("tokenizer", tokenizer)
    check_tokenizer("tokenizer", tokenizer, limit)
    if getattr(tokenizer, "add_end", False):
        raise ValueError(
            "`tokenizer` must leave texts open for what follows. Build it with "
            f"add_end=False. Received: tokenizer={tokenizer!r} with "
            "add_end=True"
        )
