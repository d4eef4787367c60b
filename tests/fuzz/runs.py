"""Runs what was drawn on the backend, and compares it with its bound."""

import functools
import math
from typing import Any

import numpy as np
from bounded import LARGEST, Bounded
from cases import compiles
from keras import ops

from keras_rfa.testing import as_numpy, as_tensors, compiled, differentiated

Array = Any
Layout = tuple[tuple[str, tuple[int, ...]], ...]


def flat(arrays: dict[str, Array]) -> tuple[Array, Layout]:
    """Joins arrays to one vector, by which a function is differentiated."""
    layout = tuple((name, x.shape) for name, x in arrays.items())
    parts = [np.ravel(x) for x in arrays.values()]
    return np.concatenate(parts).astype("float32"), layout


def parts(vector: Any, layout: Layout) -> dict[str, Any]:
    """Takes a vector, an array or a tensor, apart again."""
    taken, start = {}, 0
    for name, shape in layout:
        size = math.prod(shape)
        taken[name] = ops.reshape(vector[start : start + size], shape)
        start += size
    return taken


def array_parts(vector: Array, layout: Layout) -> dict[str, Array]:
    """Takes an array apart again."""
    ends = np.cumsum([math.prod(shape) for _, shape in layout])
    pieces = np.split(vector, ends[:-1])
    return {
        name: piece.reshape(shape)
        for (name, shape), piece in zip(layout, pieces, strict=True)
    }


def run(function: Any, key: Any, arrays: Any, others: Any) -> Any:
    """Calls a function, and differentiates it.

    Args:
        function: `(key, tensors, others) -> (value, outputs)`.
        key: hashable, all that a compiled function depends on.
        arrays: dict of float arrays, by which the value is differentiated.
        others: structure of other arrays.

    Returns:
        The outputs, and a dict of gradients.
    """
    vector, layout = flat(arrays)
    _, outputs, gradient, _ = _runner(function, key, layout)(vector, others)
    return outputs, array_parts(gradient, layout)


def forget() -> None:
    """Forgets what was compiled."""
    _runner.cache_clear()


@functools.lru_cache(maxsize=512)
def _runner(function: Any, key: Any, layout: Layout) -> Any:
    def total(vector: Any, others: Any) -> Any:
        return function(key, parts(vector, layout), others)

    run = differentiated(total, [])
    if compiles():
        return compiled(run)
    return lambda *arrays: as_numpy(run(*as_tensors(arrays)))


def check(
    what: str, actual: Array, expected: Bounded, dtype: str = "float32"
) -> None:
    """Raises unless an array is finite and within its bound.

    What a dtype cannot hold may be infinite, and so may what no bound is
    known of.
    """
    bounded = expected.rounded(dtype)
    size = np.abs(bounded.value)
    if dtype == "float16":
        size = size + bounded.error
    holds = (size < LARGEST[dtype]) & (bounded.error < np.inf)
    if actual.shape != bounded.value.shape:
        raise AssertionError(
            f"{what}: the shape is {actual.shape}, not {bounded.value.shape}."
        )
    wrong = holds & ~np.isfinite(actual)
    if np.any(wrong):
        raise AssertionError(
            f"{what}: {wrong.sum()} of {actual.size} values are not finite, "
            f"the first at {np.argwhere(wrong)[0]}, where "
            f"{bounded.value[wrong][0]:.3e} was expected."
        )
    with np.errstate(invalid="ignore"):
        difference = np.abs(actual - bounded.value)
    wrong = holds & ~(difference <= bounded.error)
    if np.any(wrong):
        worst = np.argmax(np.where(wrong, difference / bounded.error, 0))
        at = np.unravel_index(worst, actual.shape)
        raise AssertionError(
            f"{what}: {wrong.sum()} of {actual.size} values are wrong, the "
            f"worst at {[int(i) for i in at]}: {actual[at]:.9e} instead of "
            f"{bounded.value[at]:.9e} within {bounded.error[at]:.1e}."
        )
