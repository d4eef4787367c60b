"""Token ids of many texts, and the pieces that they stand for."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_rfa.text import WordpieceTokenizer


def read_tokens(tokenizer: Any, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the ids of each text that are read."""
    chunks = [texts[i : i + 256] for i in range(0, len(texts), 256)]
    return [
        ids[ids > 0] for chunk in chunks for ids in tokenizer(chunk).numpy()
    ]


def write_vocabulary(tokenizer: Any, output: pathlib.Path) -> None:
    """Writes the pieces of words, one in a line."""
    if isinstance(tokenizer, WordpieceTokenizer):
        (output / "vocabulary.txt").write_text(
            "".join(f"{piece}\n" for piece in tokenizer.vocabulary),
            encoding="utf-8",
        )
