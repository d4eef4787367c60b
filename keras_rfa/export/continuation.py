"""The loop that writes token by token, inside of a graph."""

from typing import Any

import numpy as np

from keras_rfa.export import graphs
from keras_rfa.export.streaming_graph import FlatState, StreamingGraph

Tensor = Any


def continue_rows(
    graph: StreamingGraph,
    tokens: Tensor,
    state: FlatState,
    remaining: Tensor,
    stops: list[int],
    tokenizer: Any,
    temperature: Tensor | None = None,
    seed: Tensor | None = None,
) -> Tensor:
    """Returns the tokens that follow, `(b, n)`, until all rows are done.

    A row gets the same tokens whatever else is in the batch, and 0 after its
    last one, which also stands for the tokens that end it.

    Args:
        graph: reads the tokens.
        tokens: int32 `(b,)`, the last of each row.
        state: what was read before them.
        remaining: int32 `(b,)`, how many tokens each row may get.
        stops: the tokens that end a row.
        tokenizer: what makes texts of the tokens. Others than its own are
            chosen only to end a row, and padding never is.
        temperature: float32 `(b,)`; 0 for the most probable token, which is
            also what `None` means.
        seed: int32 `(b,)`, that of the random numbers of each row.
    """
    tf = graph.tf
    ids = np.arange(graph.vocabulary_size)
    known = getattr(tokenizer, "vocabulary_size", graph.vocabulary_size)
    allowed = (ids > 0) & (ids < known) | np.isin(ids, stops)
    penalty = tf.constant(np.where(allowed, 0.0, -np.inf), tf.float32)
    stop_tokens = tf.constant(stops, tf.int32, shape=(len(stops),))
    columns = tf.range(tf.maximum(tf.reduce_max(remaining), 0))
    written = tf.zeros_like(tokens)[:, None] * columns

    def body(
        i: Tensor,
        written: Tensor,
        tokens: Tensor,
        state: FlatState,
        remaining: Tensor,
    ) -> tuple[Any, ...]:
        tokens = tf.where(remaining > 0, tokens, 0)
        logits, state = graph.step(tokens, state)
        chosen = _choose(tf, logits + penalty, temperature, seed, i)
        is_stop = tf.reduce_any(chosen[:, None] == stop_tokens, axis=1)
        chosen = tf.where((remaining > 0) & ~is_stop, chosen, 0)
        written = tf.where(columns == i, chosen[:, None], written)
        remaining = tf.where(chosen > 0, remaining - 1, 0)
        return i + 1, written, chosen, state, remaining

    _, written, _, _, _ = tf.while_loop(
        lambda *variables: tf.reduce_any(variables[-1] > 0),
        body,
        (0, written, tokens, state, remaining),
    )
    return written


def check_options(
    tf: Any, rows: Tensor, **options: Tensor
) -> dict[str, Tensor]:
    """Returns the options of sampling, wrong ones as an error.

    Args:
        tf: the module TensorFlow.
        rows: int32 tensor of shape `()`, how many entries they must have.
        **options: tensors `(b,)`: `max_new_tokens`, `temperature` and `seed`.
    """
    checked = {}
    for name, values in options.items():
        message = f"`{name}` must have an entry for each text"
        fits = tf.equal(tf.shape(values)[0], rows)
        values = graphs.if_true(tf, fits, values, [message])
        if name != "seed":
            message = f"`{name}` must be finite and at least 0"
            valid = (values >= 0) & (values <= values.dtype.max)
            values = graphs.if_true(tf, tf.reduce_all(valid), values, [message])
        checked[name] = values
    return checked


def _choose(
    tf: Any,
    logits: Tensor,
    temperature: Tensor | None,
    seed: Tensor | None,
    step: Tensor,
) -> Tensor:
    """Returns a token for each row of logits `(b, v)`."""
    most_probable = tf.argmax(logits, axis=-1, output_type=tf.int32)
    if temperature is None:
        return most_probable
    # Differences, so that small temperatures give no infinities above 0.
    scores = logits - tf.reduce_max(logits, axis=-1, keepdims=True)
    divisor = tf.where(temperature > 0, temperature, 1.0)
    scores = scores / divisor[:, None] + _gumbel_noise(tf, logits, seed, step)
    sampled = tf.argmax(scores, axis=-1, output_type=tf.int32)
    return tf.where(temperature > 0, sampled, most_probable)


def _gumbel_noise(tf: Any, logits: Tensor, seed: Any, step: Tensor) -> Tensor:
    """Returns noise that makes the largest score a draw from a softmax.

    It depends on the seed of the row and on the step alone.
    """
    size = logits.shape[-1]

    def draw(seed: Tensor) -> Tensor:
        return tf.random.stateless_uniform(
            (size,), [seed, step], minval=1e-30, alg="philox"
        )

    uniform = tf.map_fn(
        draw, seed, fn_output_signature=tf.TensorSpec((size,), tf.float32)
    )
    return -tf.math.log(-tf.math.log(uniform))
