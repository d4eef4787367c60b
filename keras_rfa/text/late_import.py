"""TensorFlow and TensorFlow Text, loaded by the first text."""

import functools
import importlib
from typing import Any


@functools.cache
def import_late(name: str) -> Any:
    """Imports when first needed: who has no text needs no TensorFlow.

    Args:
        name: string. TensorFlow, TensorFlow Text or a module of theirs.

    Raises:
        ImportError: that says what to install.
    """
    broken: tuple[type[Exception], ...] = (ImportError,)
    try:
        # The sign of a TensorFlow Text that is made for another TensorFlow.
        broken += (importlib.import_module("tensorflow").errors.NotFoundError,)
        return importlib.import_module(name)
    except broken as error:
        raise ImportError(
            f"`{name}` cannot be imported: {error}. "
            'Install it with `pip install "keras_rfa[text]"`.'
        ) from error
