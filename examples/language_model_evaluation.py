"""How well language models predict, and how that depends on what they read."""

import argparse
import itertools
import math
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from keras import ops
from language_model_training import Tokens

from keras_rfa.generation import compiled

REACH = 16  # times the length of training, for the loss by position


def evaluate(
    options: argparse.Namespace, model: keras.Model, tokens: Tokens
) -> dict[str, Any]:
    """Measures how well a model predicts the test works.

    Returns:
        dict of `"segments"`, what it needs when every segment of the training
        length is read from nothing, `"stretches"`, when a state carries over
        as many segments as `"reach"` says, and `"works"`, when it carries
        through whole works (`None` where the state is a cache, which grows),
        each with `"bits_per_byte"` and `"perplexity"`, of a token; and
        `"by_position"`, the loss within the stretches.
    """
    longest = max(map(len, tokens.test)) - 1
    reach = max(1, min(REACH, longest // options.length))

    def losses(rows: list[np.ndarray], batch_size: int) -> list[np.ndarray]:
        return token_losses(model, rows, batch_size, options.length)

    stretches = losses(
        pieces(tokens.test, reach * options.length), options.batch_size
    )
    results: dict[str, Any] = {
        "reach": reach,
        "segments": summary(
            losses(pieces(tokens.test, options.length), options.batch_size),
            tokens.bytes_per_token,
        ),
        "stretches": summary(stretches, tokens.bytes_per_token),
        "works": None,
        "by_position": by_position(
            stretches, options.length, reach, tokens.bytes_per_token
        ),
    }
    state = model.get_initial_state(1, max_length=1)
    if model.free_steps(state) is None:
        results["works"] = summary(
            losses(tokens.test, len(tokens.test)), tokens.bytes_per_token
        )
    return results


def read(
    model: keras.Model, sampler: None, inputs: Any, labels: Any, state: Any
) -> Any:
    """Reads a block of tokens; see `keras_rfa.generation.compiled.run`.

    Args:
        model: with `call_with_state`.
        sampler: not used.
        inputs: ids `(b, t)`.
        labels: ids `(b, t)`.
        state: what the model has read before.

    Returns:
        The loss of each label `(b, t)`, 0 at padding, and the next state.
    """
    logits, state = model.call_with_state(inputs, state)
    nats = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return ops.where(labels > 0, nats, 0.0), state


def token_losses(
    model: keras.Model,
    rows: list[np.ndarray],
    batch_size: int,
    block: int,
) -> list[np.ndarray]:
    """Returns the loss of each token of each row, but the first, in nats.

    Every row is read from nothing, a block of it at a time, so that the memory
    needed does not depend on how long it is.

    Args:
        model: with `get_initial_state`.
        rows: list of integers `(n,)`, of any lengths.
        batch_size: int. Rows to read at once.
        block: int. Tokens of a row to read at once.
    """
    losses = []
    for first in range(0, len(rows), batch_size):
        batch = rows[first : first + batch_size]
        longest = max(len(row) for row in batch) - 1
        blocks = -(-longest // block)
        ids = np.zeros((batch_size, blocks * block + 1), "int32")
        for i, row in enumerate(batch):
            ids[i, : len(row)] = row
        # The last token of a row is a label only.
        labels = ids[:, 1:]
        inputs = np.where(labels > 0, ids[:, :-1], 0)
        state = model.get_initial_state(batch_size, max_length=blocks * block)
        nats = []
        for begin in range(0, blocks * block, block):
            part = slice(begin, begin + block)
            values, state = compiled.run(
                read, model, None, inputs[:, part], labels[:, part], state
            )
            nats.append(ops.convert_to_numpy(values))
        values = np.concatenate(nats, axis=1)
        losses += [
            values[i, : len(row) - 1].astype("float64")
            for i, row in enumerate(batch)
        ]
    return losses


def pieces(rows: Iterable[np.ndarray], length: int) -> list[np.ndarray]:
    """Cuts rows so that each token but the first is a label exactly once."""
    return [
        row[begin : begin + length + 1]
        for row in rows
        for begin in range(0, len(row) - 1, length)
    ]


def summary(
    losses: Iterable[np.ndarray], bytes_per_token: float
) -> dict[str, float]:
    """Returns the means of losses in nats."""
    nats = float(np.concatenate(list(losses)).mean())
    return {
        "bits_per_byte": nats / math.log(2) / bytes_per_token,
        "perplexity": math.exp(nats),
    }


def by_position(
    stretches: Iterable[np.ndarray],
    length: int,
    reach: int,
    bytes_per_token: float,
) -> list[dict[str, float]]:
    """Returns the mean loss at like positions, with its standard error.

    Args:
        stretches: losses in nats. Only complete ones count: all positions are
            then of the same texts.
        length: int. The length of training.
        reach: int. Lengths in a complete stretch.
        bytes_per_token: float.

    Returns:
        A list of dicts, for doublings of the position in four parts up to the
        training length and for each length after it.
    """
    complete = [row for row in stretches if len(row) == reach * length]
    if not complete:
        return []
    bits = np.stack(complete) / math.log(2) / bytes_per_token
    doublings = np.arange(4 * math.ceil(math.log2(length))) / 4
    edges = {*np.round(2**doublings).astype(int).tolist()}
    edges = {edge - 1 for edge in edges if edge <= length}
    edges |= {length * i for i in range(1, reach + 1)}
    ordered = sorted(edges)
    points = []
    for begin, end in itertools.pairwise(ordered):
        means = bits[:, begin:end].mean(axis=1)
        error = 0.0
        if len(means) > 1:
            error = means.std(ddof=1) / math.sqrt(len(means))
        points.append(
            {
                "first": begin + 1,
                "last": end,
                "bits_per_byte": float(means.mean()),
                "standard_error": float(error),
            }
        )
    return points
