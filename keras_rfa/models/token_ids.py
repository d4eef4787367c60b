"""What a compiled model can not check."""

from typing import Any

import numpy as np


def check_token_ids(ids: Any, vocabulary_size: int) -> None:
    """Raises a `ValueError` unless a model has a vector for every id.

    A compiled model does not check its ids: one that is too large gives NaN
    on JAX, and another row's vector or an error elsewhere. Check ids that no
    tokenizer of the same vocabulary made before you train on them.

    Args:
        ids: array of integers of any shape, or a list of such arrays.
        vocabulary_size: int. The `vocabulary_size` of the model.

    Example:

    >>> keras_rfa.models.check_token_ids([[5, 7999, 0]], 8000)
    """
    for row, values in enumerate(ids):
        values = np.asarray(values)
        if values.size and not np.issubdtype(values.dtype, np.integer):
            raise ValueError(
                "`ids` must be integers. "
                f"Received: dtype {values.dtype} in row {row}"
            )
        wrong = values[(values < 0) | (values >= vocabulary_size)]
        if wrong.size:
            raise ValueError(
                f"`ids` must be from 0 to {vocabulary_size - 1}, one less "
                f"than `vocabulary_size`. Received: {wrong.flat[0]} in row "
                f"{row}"
            )
