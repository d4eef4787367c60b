"""Files of what a model has read."""

import functools
import json
import os
import zipfile
from typing import Any

import numpy as np
from keras import backend, ops

from keras_rfa.export.new_directory import new_file

# The entry that says what the others are.
_CONTENTS = "contents"


def save_state(
    state: dict[str, Any],
    path: str | os.PathLike[str],
    overwrite: bool = False,
) -> None:
    """Writes the state of a model, to go on with it elsewhere.

    The file is a NumPy archive (`.npz`), which appears whole or not at all.
    It can be read on any backend, whatever the number of rows.

    Args:
        state: nested dict of tensors, such as `keras_rfa.generation.generate`
            returns with `return_state=True`. The keys are strings.
        path: the file to make.
        overwrite: bool. Whether to replace a file that exists.

    Raises:
        ValueError: if `state` is not such a dict.
        FileExistsError: if `path` exists and is not to be replaced.

    Example:

    >>> ids, state = generate(model, prompts, 100, return_state=True)
    >>> keras_rfa.generation.save_state(state, "conversation.npz")
    """
    arrays: dict[str, Any] = {}
    arrays[_CONTENTS] = json.dumps(_describe(state, "", arrays))
    with (
        new_file(path, overwrite=overwrite) as temporary,
        open(temporary, "wb") as file,
    ):
        np.savez(file, **arrays)


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads what `save_state` has written.

    Args:
        path: the file.

    Returns:
        nested dict of tensors, as it was saved.

    Raises:
        FileNotFoundError: if there is no file.
        ValueError: if it is another or a damaged file.

    Example:

    >>> state = keras_rfa.generation.load_state("conversation.npz")
    >>> generate(model, last_tokens, 100, initial_state=state)
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            contents = json.loads(str(file[_CONTENTS]))
            return _restore(contents, "", file)
    except (ValueError, KeyError, TypeError, EOFError, zipfile.error) as error:
        raise ValueError(
            f"{str(path)!r} is not a whole file that "
            "`keras_rfa.generation.save_state` has written: "
            f"{type(error).__name__}: {error}"
        ) from error


def _describe(state: Any, path: str, arrays: dict[str, Any]) -> Any:
    """Returns the dtypes of a state, and adds what they are of to arrays."""
    if isinstance(state, dict):
        for key in state:
            if not isinstance(key, str) or "/" in key:
                raise ValueError(
                    "The keys of `state` must be strings without a slash. "
                    f"Received: {key!r}"
                )
        return {
            key: _describe(value, f"{path}/{key}", arrays)
            for key, value in state.items()
        }
    dtype = _dtype(state) if path else None
    if dtype is None:
        where = f" at {path[1:]!r}" if path else ""
        raise ValueError(
            "`state` must be a dict of tensors of numbers and of such dicts. "
            f"Received{where}: {type(state).__name__}"
        )
    # NumPy files know no smaller floats than float16, and float32 has them.
    if dtype == "bfloat16" or dtype.startswith("float8"):
        is_array = isinstance(state, np.ndarray)
        cast = state.astype if is_array else functools.partial(ops.cast, state)
        state = cast("float32")
    arrays[path] = ops.convert_to_numpy(state)
    return dtype


def _dtype(tensor: Any) -> str | None:
    """Returns the dtype of a tensor or array, and `None` for what is none."""
    if not hasattr(tensor, "shape") or not hasattr(tensor, "dtype"):
        return None
    try:
        dtype = backend.standardize_dtype(tensor.dtype)
    except ValueError:
        return None
    return None if dtype == "string" else dtype


def _restore(contents: Any, path: str, file: Any) -> Any:
    if isinstance(contents, dict):
        return {
            key: _restore(value, f"{path}/{key}", file)
            for key, value in contents.items()
        }
    if not path:
        raise ValueError("it holds no dict")
    return ops.convert_to_tensor(file[path], dtype=contents)
