"""Reading prompts into a state."""

import inspect
from typing import Any

import numpy as np
from keras import tree

from keras_rfa.generation import compiled, programs
from keras_rfa.generation.request import Request

# Prompts are read in blocks of so many columns.
BLOCK = 1024
# Sizes below are not told apart, so that few programs are compiled.
SMALLEST = 16


def read_prompts(request: Request, initial_state: Any) -> Any:
    """Returns the state after all tokens of the prompts but the last."""
    ids = request.all_but_last()
    rows, columns = ids.shape
    steps = int(request.remaining.max())
    widths = _widths(rounded(columns))
    if initial_state is None:
        most = sum(widths) + max(1, rounded(steps))
        state = _initial_state(request.model, rows, most)
    else:
        _check_state(initial_state, rows)
        state = initial_state
        free = _free_steps(request.model, state)
        if free is not None:
            _check_room(free, columns, steps)
            widths = _widths(columns)  # since padding takes room too
    ids = np.pad(ids, [[0, 0], [sum(widths) - columns, 0]])
    for block in np.split(ids, np.cumsum(widths)[:-1], axis=1):
        if block.size:
            state = compiled.run(
                programs.read, request.model, None, state, block
            )
    return state


def _widths(columns: int) -> list[int]:
    """Returns powers of two up to that of a block, whose sum is given."""
    powers = [1 << i for i in range(BLOCK.bit_length() - 1)]
    return [
        *(power for power in powers if columns & power),
        *[BLOCK] * (columns // BLOCK),
    ]


def _free_steps(model: Any, state: Any) -> int | None:
    method = getattr(model, "free_steps", None)
    return None if method is None else method(state)


def _check_room(free: int, columns: int, steps: int) -> None:
    if columns + steps > free:
        raise ValueError(
            "`initial_state` has no room for the prompts and what is to "
            "follow. Build it with a larger `max_length`, as in "
            "`model.get_initial_state(batch_size, max_length)`, or "
            f"generate less. Received: room for {free} steps; needed: "
            f"{columns} to read and {steps} to generate"
        )


def rounded(size: int) -> int:
    """Returns one of few sizes that is no smaller."""
    if size == 0:
        return 0
    power = max(SMALLEST, 1 << (size - 1).bit_length())
    return power if power <= BLOCK else -(-size // BLOCK) * BLOCK


def _initial_state(model: Any, rows: int, max_length: int) -> Any:
    """Returns the state of a model that has read nothing.

    Raises:
        ValueError: if the model has none without more being known.
    """
    method = getattr(model, "get_initial_state", None)
    if not callable(method):
        raise ValueError(
            "`initial_state` must be given for a model that has no method "
            "`get_initial_state(batch_size, max_length)`. Received: "
            f"initial_state=None and model={model!r}"
        )
    if "batch_size" not in inspect.signature(method).parameters:
        raise ValueError(
            "`initial_state` must be given for a model whose state depends "
            "on more than the number of rows. For a translator pass "
            "`initial_state=model.get_initial_state(source_ids, max_length)`. "
            f"Received: initial_state=None and model={model!r}"
        )
    return method(rows, max_length=max_length)


def _check_state(state: Any, rows: int) -> None:
    """Raises a `ValueError` unless every tensor of a state has so many rows."""
    if not isinstance(state, dict):
        raise ValueError(
            "`initial_state` must be a dict, such as `return_state=True` or "
            "`model.get_initial_state` gives. Received: "
            f"{type(state).__name__}"
        )
    for path, tensor in tree.flatten_with_path(state):
        shape = tuple(getattr(tensor, "shape", ()))
        if not shape or shape[0] != rows:
            where = "".join(f"[{key!r}]" for key in path)
            raise ValueError(
                "`initial_state` must have a row for each prompt, so the "
                f"first dimension of its tensors is {rows}. Received: "
                f"initial_state{where}.shape={shape}"
            )
