"""What runs on the device: reading prompts, and choosing tokens.

All are functions of a model, a sampler and tensors; see `compiled.run`.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_rfa.generation import compiled

Tensor = Any

# What stands in the columns that beam search has not written yet.
UNWRITTEN = -1


def read(model: Any, sampler: None, state: Any, ids: Tensor) -> Any:
    """Returns the state after ids `(b, t)`; a compiler drops the logits."""
    return model.call_with_state(ids, state, training=False)[1]


def step(
    model: Any,
    sampler: Any,
    state: Any,
    seeds: list[Tensor],
    tokens: Tensor,
    remaining: Tensor,
    stops: Tensor,
) -> tuple[Any, ...]:
    """Reads a token of each row and chooses the next.

    Args:
        model: gives the logits.
        sampler: chooses by them.
        state: what the model has read before.
        seeds: list of the values of the variables of the sampler.
        tokens: int tensor `(b,)`, those to read.
        remaining: int tensor `(b,)`, how many tokens each row has yet to get.
            A row that gets none any more reads nothing.
        stops: int tensor `(n,)`, tokens after which a row gets none.

    Returns:
        The arguments from `state` to `remaining` for the next step. A row
        that got none, or whose logits are not numbers, has token 0.
    """
    waiting = remaining > 0
    tokens = ops.where(waiting, tokens, ops.zeros_like(tokens))
    logits, state = model.call_with_state(
        tokens[:, None], state, training=False
    )
    logits, valid = _without_padding(logits)
    # Only the sampler may change variables: nothing else is handed on.
    mapping = zip(sampler.variables, seeds, strict=True)
    with keras.StatelessScope(mapping) as scope:
        chosen = ops.cast(sampler.next_token(logits), "int32")
        seeds = [scope.get_current_value(x) for x in sampler.variables]
    zeros = ops.zeros_like(chosen)
    chosen = ops.where(ops.logical_and(waiting, valid), chosen, zeros)
    done = ops.logical_or(chosen == 0, _is_any_of(chosen, stops))
    remaining = ops.where(done, zeros, remaining - 1)
    return state, seeds, chosen, remaining


def complete(
    model: Any,
    sampler: Any,
    state: Any,
    seeds: list[Tensor],
    tokens: Tensor,
    remaining: Tensor,
    stops: Tensor,
    written: Tensor,
) -> tuple[Any, ...]:
    """Chooses all tokens.

    Args:
        model, ..., stops: as in `step`.
        written: int tensor of zeros `(b, n)`, with room for all tokens.

    Returns:
        The written tokens, the state and the seeds.
    """
    columns = ops.arange(ops.shape(written)[1], dtype="int32")

    def body(
        i: Tensor,
        written: Tensor,
        state: Any,
        seeds: list[Tensor],
        tokens: Tensor,
        remaining: Tensor,
    ) -> tuple[Any, ...]:
        after = step(model, sampler, state, seeds, tokens, remaining, stops)
        chosen = after[2]
        return i + 1, ops.where(columns == i, chosen[:, None], written), *after

    _, written, state, seeds, _, _ = compiled.loop(
        lambda *variables: ops.any(variables[-1] > 0),
        body,
        (ops.zeros((), "int32"), written, state, seeds, tokens, remaining),
        ops.max(remaining),
    )
    return written, state, seeds


def search(
    model: Any,
    sampler: Any,
    state: Any,
    written: Tensor,
    start: Tensor,
    remaining: Tensor,
    stops: Tensor,
) -> Tensor:
    """Chooses all tokens by a beam search.

    Args:
        model: gives the logits.
        sampler: searches, see `keras_hub_samplers.Beams`.
        state: what the model has read.
        written: int tensor `(b, n)`: the tokens to read first in the column
            before `start`, and `UNWRITTEN` from there on.
        start: int tensor of shape `()`.
        remaining: int tensor `(b,)`, how many tokens each row gets.
        stops: int tensor `(n,)`, tokens after which a row gets none.

    Returns:
        The best beam of each row, with zeros after its last token.
    """
    columns = ops.arange(ops.shape(written)[1], dtype="int32")
    # 0 too: it is what a beam gets that is done.
    stops = ops.concatenate([ops.zeros((1,), "int32"), stops], axis=0)

    def next_logits(written: Tensor, cache: Any, index: Tensor) -> Any:
        is_new = ops.logical_and(columns >= start, columns < index)
        stopped = ops.logical_and(is_new, _is_any_of(written, stops))
        done = ops.logical_or(
            ops.any(stopped, axis=1), index - start >= cache["remaining"]
        )
        tokens = ops.take(written, index - 1, axis=1)
        tokens = ops.where(done, ops.zeros_like(tokens), tokens)
        logits, state = model.call_with_state(
            tokens[:, None], cache["state"], training=False
        )
        logits, valid = _without_padding(logits)
        # A beam that is done gets padding, at no loss of its probability.
        frozen = ops.where(_is_padding(logits), 0.0, -math.inf)
        going = ops.logical_and(valid, ops.logical_not(done))
        logits = ops.where(going[:, None], logits, frozen)
        return logits, None, {**cache, "state": state}

    return sampler.search(
        next_logits,
        prompt=written,
        cache={"state": state, "remaining": remaining},
        index=start,
        mask=ops.broadcast_to(columns < start, ops.shape(written)),
        stop_token_ids=[stops[i] for i in range(stops.shape[0])],
        model=model,
    )


def _without_padding(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns logits `(b, v)` that allow no padding, and which are valid.

    Those of a row that are not valid are 0 instead, for the samplers.
    """
    logits = ops.cast(logits[:, -1], "float32")
    # NaN is less than nothing.
    valid = ops.all(logits < math.inf, axis=-1)
    logits = ops.where(valid[:, None], logits, 0.0)
    logits = ops.where(_is_padding(logits), -math.inf, logits)
    possible = ops.any(logits > -math.inf, axis=-1)
    return logits, ops.logical_and(valid, possible)


def _is_padding(logits: Tensor) -> Tensor:
    return ops.arange(ops.shape(logits)[-1], dtype="int32") == 0


def _is_any_of(tokens: Tensor, values: Tensor) -> Tensor:
    return ops.any(tokens[..., None] == values, axis=-1)
