"""What a call of `generate` asks for."""

import dataclasses
import operator
from typing import Any

import numpy as np
from keras import ops

from keras_rfa.generation.samplers import sampler_of
from keras_rfa.ops.checks import check_positive

Tensor = Any
Array = np.ndarray[Any, Any]


@dataclasses.dataclass
class Request:
    """What to generate, all checked.

    Args:
        model: a model that has `call_with_state`.
        prompts: list of arrays of ids, none empty.
        remaining: int array `(b,)`, how many tokens each row may get.
        sampler: what `sampler_of` returns.
        stops: int array `(n,)`, the tokens that end a row.
        seed: int or `None`.
    """

    model: Any
    prompts: list[Array]
    remaining: Array
    sampler: Any
    stops: Array
    seed: int | None

    def last_tokens(self) -> Array:
        """Returns the last token `(b,)` of each prompt."""
        return np.asarray([row[-1] for row in self.prompts], "int32")

    def all_but_last(self) -> Array:
        """Returns the other tokens `(b, t)`, with padding on the left."""
        width = max(len(row) for row in self.prompts) - 1
        ids = np.zeros((len(self.prompts), width), "int32")
        for row, prompt in zip(ids, self.prompts, strict=True):
            row[width - len(prompt) + 1 :] = prompt[:-1]
        return ids

    def seeds(self) -> list[Tensor]:
        """Returns values for the variables of the sampler."""
        variables = self.sampler.variables
        if self.seed is None:
            # Copies: TensorFlow would hand on the variables themselves.
            return [ops.copy(variable.value) for variable in variables]
        return [
            ops.convert_to_tensor(
                [(self.seed + i * 1_000_003) % 2**31, 0], dtype=variable.dtype
            )
            for i, variable in enumerate(variables)
        ]

    def keep_seeds(self, seeds: list[Tensor]) -> None:
        """Lets the next call without a seed go on from these values."""
        if self.seed is None:
            for variable, value in zip(
                self.sampler.variables, seeds, strict=True
            ):
                variable.assign(value)


def read_request(
    model: Any,
    prompts: Any,
    max_length: int,
    sampler: Any,
    stop_token_ids: Any,
    seed: int | None,
) -> Request:
    """Returns the arguments of `generate`, checked, or raises an error."""
    if not callable(getattr(model, "call_with_state", None)):
        raise ValueError(
            "`model` must read sequences in parts: it needs a method "
            "`call_with_state(token_ids, state, training)`, which "
            "`keras_rfa.models.language_model` gives it. "
            f"Received: model={model!r}"
        )
    vocabulary_size = getattr(model, "vocabulary_size", None)
    rows = _rows(prompts, vocabulary_size)
    max_length = check_positive("max_length", max_length)
    for i, row in enumerate(rows):
        if len(row) > max_length:
            raise ValueError(
                "`max_length` counts the prompt too, so no prompt can be "
                f"longer. Received: max_length={max_length}, and {len(row)} "
                f"tokens in row {i}"
            )
    if seed is not None and check_positive("seed", seed, 0) >= 2**31:
        raise ValueError(f"`seed` must be below 2**31. Received: seed={seed!r}")
    return Request(
        model=model,
        prompts=rows,
        remaining=np.asarray([max_length - len(x) for x in rows], "int32"),
        sampler=sampler_of(sampler),
        stops=_stops(stop_token_ids, vocabulary_size),
        seed=None if seed is None else operator.index(seed),
    )


def _rows(prompts: Any, vocabulary_size: int | None) -> list[Array]:
    """Returns the rows of prompts without padding."""
    try:
        # Tensors of any backend are arrays of rows too.
        rows = [_as_array(row) for row in _as_sequence(prompts)]
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`prompts` must be a list of lists of ints, or an int array of "
            f"shape (b, t). Received: prompts={prompts!r}"
        ) from error
    if not rows:
        raise ValueError("`prompts` must have a row. Received: no prompts")
    return [_row(i, row, vocabulary_size) for i, row in enumerate(rows)]


def _as_sequence(prompts: Any) -> Any:
    return ops.convert_to_numpy(prompts) if ops.is_tensor(prompts) else prompts


def _as_array(row: Any) -> Array:
    return ops.convert_to_numpy(row) if ops.is_tensor(row) else np.asarray(row)


def _row(i: int, row: Array, vocabulary_size: int | None) -> Array:
    if row.ndim != 1 or (row.size and not np.issubdtype(row.dtype, np.integer)):
        raise ValueError(
            "`prompts` must have rows of ints. Received: row "
            f"{i} of dtype {row.dtype} and shape {row.shape}"
        )
    (real,) = np.nonzero(row)
    row = row[: real[-1] + 1] if real.size else row[:0]
    if not row.size:
        raise ValueError(
            "`prompts` must have a token in each row, such as the one that "
            f"begins a sequence. Received: no token in row {i}"
        )
    if not row.all():
        raise ValueError(
            "0 is padding, and in `prompts` it may follow the tokens of a "
            f"row only. Received: 0 before other tokens in row {i}"
        )
    _check_tokens(f"row {i} of `prompts`", row, vocabulary_size)
    return row.astype("int32")


def _stops(stop_token_ids: Any, vocabulary_size: int | None) -> Array:
    if stop_token_ids is None:
        return np.zeros((0,), "int32")
    stops = np.atleast_1d(np.asarray(stop_token_ids))
    if stops.ndim != 1 or (
        stops.size and not np.issubdtype(stops.dtype, np.integer)
    ):
        raise ValueError(
            "`stop_token_ids` must be an int, a list of ints or `None`. "
            f"Received: stop_token_ids={stop_token_ids!r}"
        )
    _check_tokens("`stop_token_ids`", stops, vocabulary_size)
    return stops.astype("int32")


def _check_tokens(where: str, ids: Array, vocabulary_size: int | None) -> None:
    end = 2**31 if vocabulary_size is None else vocabulary_size
    wrong = ids[(ids < 1) | (ids >= end)]
    if wrong.size:
        raise ValueError(
            f"The tokens of {where} must be from 1 to {end - 1}: 0 is "
            "padding, and the last is one less than the vocabulary of the "
            f"model. Received: {wrong[0]}"
        )


def check_is_beamable(model: Any) -> None:
    """Raises a `ValueError` if a layer would carry states past the beams."""
    for layer in model._flatten_layers(include_self=False):
        if getattr(layer, "stateful", False):
            raise ValueError(
                "Beams change places, and a layer that carries a state of its "
                "own does not follow. Build the model with stateful=False, "
                "and copy the weights. "
                f"Received: a layer {layer.name!r} with stateful=True"
            )
