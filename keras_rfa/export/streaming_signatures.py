"""What the signatures of language models and translators share."""

import inspect
from typing import Any

import keras
import numpy as np

from keras_rfa.export import graphs
from keras_rfa.export.streaming_graph import FlatState, StreamingGraph

Tensor = Any


def advance(
    graph: StreamingGraph, token_ids: Tensor, state: FlatState, rows: Tensor
) -> dict[str, Tensor]:
    """Returns the logits after ids `(b, t)`, and the state, of some rows."""
    last, state = graph.read(token_ids, state)
    logits, state = graph.step(last, state)
    outputs = {"logits": logits, **state}
    return {name: tensor[:rows] for name, tensor in outputs.items()}


def step_signature(graph: StreamingGraph) -> Any:
    """Returns the signature that reads on from a state."""
    tf = graph.tf

    def step(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        ids = inputs["token_ids"]
        rows = tf.shape(ids)[0]
        state = {
            name: at_least_a_row(tf, tensor)
            for name, tensor in graph.check_state(inputs, ids).items()
        }
        ids = graphs.ids_in_range(tf, ids, graph.vocabulary_size)
        return advance(graph, at_least_a_row(tf, ids), state, rows)

    return graphs.graph(
        tf,
        step,
        token_ids=((None, None), tf.int32),
        **graph.signature_of_state(),
    )


def at_least_a_row(tf: Any, tensor: Tensor) -> Tensor:
    """Adds a row of zeros, or an empty text, to a batch of nothing.

    A size that JAX does not know is at least 1.
    """
    missing = tf.maximum(1 - tf.shape(tensor)[0], 0)
    shape = tf.concat([[missing], tf.shape(tensor)[1:]], axis=0)
    empty = "" if tensor.dtype == tf.string else tf.zeros((), tensor.dtype)
    return tf.concat([tensor, tf.fill(shape, empty)], axis=0)


def check_streaming(model: Any, translates: bool) -> None:
    """Raises a `ValueError` unless a model has the methods of its kind."""
    name = "translator" if translates else "language_model"
    begin = getattr(model, "get_initial_state", None)
    if (
        not isinstance(model, keras.Model)
        or not callable(getattr(model, "call_with_state", None))
        or not callable(begin)
    ):
        raise ValueError(
            "`model` must read sequences in parts: it needs the methods "
            "`get_initial_state` and `call_with_state`, which "
            f"`keras_rfa.models.{name}` gives it. Received: model={model!r}"
        )
    if ("batch_size" in inspect.signature(begin).parameters) == translates:
        other = "language_model" if translates else "translator"
        raise ValueError(
            "`get_initial_state` of `model` must take "
            f"{'source ids' if translates else '`batch_size`'}. Export it by "
            f"`export_{other}`. Received: model={model!r}"
        )


def check_tokenizer(name: str, tokenizer: Any, limit: int | None) -> None:
    """Raises a `ValueError` if a tokenizer has more ids than the model."""
    tokens = getattr(tokenizer, "vocabulary_size", 0)
    if limit is not None and limit < tokens:
        raise ValueError(
            f"`{name}` has {tokens} ids and the model only {limit}. Build the "
            "model with `tokenizer.vocabulary_size`."
        )


def check_to_text(name: str, tokenizer: Any) -> None:
    """Raises a `ValueError` if a tokenizer has no way back to texts."""
    if not callable(getattr(tokenizer, "to_text", None)):
        raise ValueError(
            f"`{name}` must have a method `to_text` from ids (b, t) to strings "
            "(b,) that works in a TensorFlow graph. "
            f"Received: {name}={tokenizer!r}"
        )


def check_tokens(name: str, given: Any, limit: int) -> list[int]:
    """Returns tokens as a list, or raises a `ValueError`.

    Args:
        name: string, the argument.
        given: what it was: an int, ints or `None` for none.
        limit: int. How many ids there are.
    """
    tokens = np.atleast_1d([] if given is None else given)
    if tokens.size and not (
        tokens.ndim == 1
        and np.issubdtype(tokens.dtype, np.integer)
        and 1 <= tokens.min() <= tokens.max() < limit
    ):
        raise ValueError(
            f"`{name}` must be from 1 to {limit - 1}: 0 is padding, and the "
            "last is one less than the vocabulary of the model. "
            f"Received: {name}={given!r}"
        )
    return [int(token) for token in tokens]
