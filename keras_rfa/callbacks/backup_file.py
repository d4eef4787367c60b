"""A file of values and arrays, complete or not there."""

import json
import os
import pathlib
import zipfile
from typing import Any

import keras
import numpy as np

FORMAT = "keras_rfa backup 1"


def write(path: pathlib.Path, header: Any, arrays: list[np.ndarray]) -> None:
    """Writes a file that takes its place when it is complete, on the disk."""
    text = np.frombuffer(
        json.dumps({"format": FORMAT, **header}).encode(), "uint8"
    )
    new = unfinished(path)
    try:
        with open(new, "wb") as file:
            np.savez(file, *arrays, header=text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)
    if os.name == "posix":
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def unfinished(path: pathlib.Path) -> pathlib.Path:
    """Names a file that the next one replaces, so that none is left."""
    return path.with_name(f".{path.name}.unfinished")


def read(path: pathlib.Path) -> tuple[Any, list[np.ndarray]]:
    """Returns all that a file holds, so that no error can come later."""
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as content:
                header = json.loads(content["header"].tobytes())
                known = header["format"]
                arrays = [
                    content[f"arr_{i}"] for i in range(len(content.files) - 1)
                ]
        except (
            EOFError,
            KeyError,
            OSError,
            TypeError,
            ValueError,
            zipfile.BadZipFile,
        ) as error:
            raise ValueError(
                f"{str(path)!r} is no backup of BackupAndResume, or is "
                f"damaged ({error}). Nothing was restored. Choose another "
                "path, or delete the file to begin anew."
            ) from error
    if known != FORMAT:
        raise ValueError(
            f"{str(path)!r} was written by another version of keras_rfa. "
            f"Received: format {known!r}; this version reads {FORMAT!r}. "
            "Nothing was restored. Resume with that version, or delete the "
            "file to begin anew."
        )
    return header, arrays


def pack_attributes(callback: Any, arrays: list[np.ndarray]) -> Any:
    """Returns those attributes of a callback that a file can hold."""
    state = {}
    for name, value in vars(callback).items():
        count = len(arrays)
        try:
            # The parameters are those of `fit`, which may have other epochs.
            if name != "params":
                state[name] = pack(value, arrays)
        except TypeError:
            del arrays[count:]
    return {"dict": list(state.items())}


def pack(value: Any, arrays: list[np.ndarray]) -> Any:
    """Returns a value as JSON that refers to arrays by their numbers."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [pack(item, arrays) for item in value]
    if type(value) is tuple:
        return {"tuple": [pack(item, arrays) for item in value]}
    if type(value) is dict:
        items = value.items()
        return {"dict": [[pack(k, arrays), pack(v, arrays)] for k, v in items]}
    if isinstance(value, np.ndarray | np.generic):
        kind = "scalar" if isinstance(value, np.generic) else "array"
        dtype = value.dtype.name
        if value.dtype.kind not in "biufcU":
            # NumPy cannot write bfloat16 and the like, which float32 holds.
            if not np.can_cast(value.dtype, "float32"):
                raise TypeError(dtype)
            value = value.astype("float32")
        return {kind: [_number(np.asarray(value), arrays), dtype]}
    name = getattr(value, "__name__", "")
    if name and getattr(keras.ops, name, None) is value:
        return {"keras.ops": name}
    raise TypeError(type(value).__name__)


def _number(array: np.ndarray, arrays: list[np.ndarray]) -> int:
    """Returns the number of an array, new unless the same is there."""
    bits = None
    for number, other in enumerate(arrays):
        if (other.shape, other.dtype) == (array.shape, array.dtype):
            bits = array.tobytes() if bits is None else bits
            if other.tobytes() == bits:
                return number
    arrays.append(array)
    return len(arrays) - 1


def unpack(packed: Any, arrays: list[np.ndarray]) -> Any:
    """Returns the value that `pack` was given."""
    if isinstance(packed, list):
        return [unpack(item, arrays) for item in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == "keras.ops":
        return getattr(keras.ops, content)
    if kind == "tuple":
        return tuple(unpack(content, arrays))
    if kind == "dict":
        return {unpack(k, arrays): unpack(v, arrays) for k, v in content}
    number, dtype = content
    array = arrays[number].astype(dtype, copy=False)
    return array[()] if kind == "scalar" else array
