"""Generating sequences with a model that reads them in parts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from keras import ops

from keras_rfa.generation import compiled, programs
from keras_rfa.generation.keras_hub_samplers import Beams
from keras_rfa.generation.prefill import read_prompts, rounded
from keras_rfa.generation.request import (
    Array,
    Request,
    check_is_beamable,
    read_request,
)


def generate(
    model: Any,
    prompts: Any,
    max_length: int,
    *,
    sampler: Any = "greedy",
    stop_token_ids: Any = None,
    seed: int | None = None,
    initial_state: Any = None,
    return_state: bool = False,
) -> Any:
    """Continues prompts, a token at a time.

    The prompts are read in blocks, and each new token with the state of all
    before it, so that a token costs the same after ten and after a million.
    On JAX and TensorFlow both are compiled, with the loop over the tokens.
    Lengths are rounded up for that, so that other prompts and another
    `max_length` seldom compile again; other weights never do.

    Token 0 is padding and never generated.

    Args:
        model: `keras_rfa.models.language_model`, a translator, or any Keras
            model with their methods:
            `get_initial_state(batch_size, max_length=None)` returns a nested
            dict of tensors whose first axis are the rows, and
            `call_with_state(token_ids, state, training=False)` returns logits
            `(b, t, v)` and the next state, which padding leaves as it is. It
            may also have a `vocabulary_size` and `free_steps(state)`, the
            columns that fit into a state.
        prompts: list of lists of ints, the tokens of each row, at least one;
            or an int array `(b, t)`. Zeros at the end of a row are padding.
        max_length: int. The most tokens of a row, those of its prompt
            included.
        sampler: how a token is chosen. `"greedy"` (the most probable),
            `"random"` (by its probability), a
            `keras_rfa.generation.Temperature`, or, with keras_hub, `"top_k"`,
            `"top_p"`, `"beam"` or an object of `keras_hub.samplers` that
            chooses token by token or by beams. In a beam search what has
            ended keeps its probability, and competes with longer sequences.
        stop_token_ids: int or list of ints, tokens that end a row. Those in a
            prompt do not count.
        seed: int. Equal seeds give equal outputs. `None` means other random
            numbers each time; an object goes on where it was.
        initial_state: nested dict of tensors, what was read before the
            prompts; nothing by default. A translator needs it:
            `model.get_initial_state(source_ids, max_length)`.
        return_state: bool. Whether to return the state too. It has read all
            tokens of each row of the output but the last. To go on, pass
            prompts that begin with those last tokens.

    Returns:
        int32 array `(b, n)` of the prompts and what follows, with zeros after
        the last token of a row; with `return_state` a pair of it and the
        state.

    Raises:
        ValueError: if an argument does not fit, if the state has no room for
            so many tokens, or if the model gives logits that are no numbers.
        ImportError: if the sampler needs keras_hub and it is missing.

    Example:

    >>> from keras_rfa.generation import generate
    >>> generate(model, [[5, 2], [7]], max_length=50, stop_token_ids=[3])

    In two parts, which together are what one call gives:

    >>> ids, state = generate(model, [[5, 2]], 20, return_state=True)
    >>> rest = generate(model, ids[:, -1:], 31, initial_state=state)
    >>> np.concatenate([ids, rest[:, 1:]], axis=1)  # 50 tokens
    """
    request = read_request(
        model, prompts, max_length, sampler, stop_token_ids, seed
    )
    is_search = isinstance(request.sampler, Beams)
    if is_search:
        _check_beams(request, return_state=return_state)
    state = read_prompts(request, initial_state)
    steps = int(request.remaining.max())
    written = np.zeros((len(request.prompts), 0), "int32")
    if steps and is_search:
        written = _search(request, state, steps)
    elif steps:
        written, state = _complete(request, state, steps)
    ids = _joined(request, written)
    return (ids, state) if return_state else ids


def stream(
    model: Any,
    prompts: Any,
    max_length: int,
    *,
    sampler: Any = "greedy",
    stop_token_ids: Any = None,
    seed: int | None = None,
    initial_state: Any = None,
) -> Iterator[Array]:
    """Continues prompts, and gives each token as soon as it is chosen.

    Together the tokens are those of `generate`, which is faster where nobody
    waits for the first ones.

    Args:
        model, ..., initial_state: as in `generate`. There are no beams.

    Returns:
        An iterator of int32 arrays `(b,)`, the next token of each row; 0 for
        a row that is done.

    Raises:
        ValueError, ImportError: as in `generate`, at once or, for logits that
            are no numbers, where they come.

    Example:

    >>> for tokens in keras_rfa.generation.stream(model, [[5, 2]], 50):
    ...     print(tokens[0], flush=True)
    """
    request = read_request(
        model, prompts, max_length, sampler, stop_token_ids, seed
    )
    if isinstance(request.sampler, Beams):
        raise ValueError(
            "A beam search knows no token before it has ended. Call "
            f"`generate`, or pass another sampler. Received: {sampler!r}"
        )
    state = read_prompts(request, initial_state)
    return _streamed(request, state)


def _streamed(request: Request, state: Any) -> Iterator[Array]:
    seeds = request.seeds()
    tokens = request.last_tokens()
    remaining = request.remaining
    count = 0
    while remaining.any():
        state, seeds, tokens, left = compiled.run(
            programs.step,
            request.model,
            request.sampler,
            state,
            seeds,
            tokens,
            remaining,
            request.stops,
        )
        request.keep_seeds(seeds)
        chosen = ops.convert_to_numpy(tokens)
        _check_logits((remaining > 0) & (chosen == 0), count)
        yield chosen
        remaining = ops.convert_to_numpy(left)
        count += 1


def _complete(request: Request, state: Any, steps: int) -> tuple[Array, Any]:
    """Returns the new tokens and the last state."""
    written, state, seeds = compiled.run(
        programs.complete,
        request.model,
        request.sampler,
        state,
        request.seeds(),
        request.last_tokens(),
        request.remaining,
        request.stops,
        np.zeros((len(request.prompts), rounded(steps)), "int32"),
    )
    request.keep_seeds(seeds)
    return ops.convert_to_numpy(written), state


def _search(request: Request, state: Any, steps: int) -> Array:
    """Returns the new tokens of the best beams."""
    # The search goes on to the last column, so that is where it has to end.
    width = rounded(steps + 1)
    start = width - steps
    prompts = np.zeros((len(request.prompts), width), "int32")
    prompts[:, start - 1] = request.last_tokens()
    prompts[:, start:] = programs.UNWRITTEN
    found = compiled.run(
        programs.search,
        request.model,
        request.sampler,
        state,
        prompts,
        np.asarray(start, "int32"),
        request.remaining,
        request.stops,
    )
    return np.maximum(ops.convert_to_numpy(found)[:, start:], 0)


def _joined(request: Request, written: Array) -> Array:
    """Returns the prompts with what follows them."""
    rows = []
    for i, prompt in enumerate(request.prompts):
        new = written[i, : request.remaining[i]]
        (ends,) = np.nonzero((new == 0) | np.isin(new, request.stops))
        count = ends[0] + 1 if ends.size else len(new)
        if ends.size and new[ends[0]] == 0:
            _check_logits(np.arange(len(request.prompts)) == i, ends[0])
        rows.append(np.concatenate([prompt, new[:count]]))
    ids = np.zeros((len(rows), max(len(row) for row in rows)), "int32")
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    return ids


def _check_logits(is_wrong: Array, count: Any) -> None:
    """Raises a `ValueError` for rows that got no token though they should."""
    if is_wrong.any():
        raise ValueError(
            "The model gave logits that are no numbers, or that allow no "
            f"token but padding, for row {np.argmax(is_wrong)} after {count} "
            "new tokens. Its weights may have diverged, or a state with "
            "`max_length` steps is full: build it with a larger `max_length`."
        )


def _check_beams(request: Request, return_state: bool) -> None:
    if return_state:
        raise ValueError(
            "A beam search returns no state. Leave out `return_state`, or "
            "pass another sampler. Received: return_state=True"
        )
    check_is_beamable(request.model)
