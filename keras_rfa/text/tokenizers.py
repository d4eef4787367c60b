"""From texts to token ids, and back."""

import collections
import functools
from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np

from keras_rfa.ops.checks import check_positive
from keras_rfa.text.late_import import import_late


class _Tokenizer:
    """What both tokenizers share: the forms of input, output and config."""

    vocabulary_size: int
    _tokenize: Any
    _detokenize: Any
    _join: Any

    def __init__(self, max_length: int | None = None) -> None:
        if max_length is not None:
            check_positive("max_length", max_length)
        self.max_length = max_length

    def __call__(self, texts: Any) -> Any:
        """Returns ids of shape `(t,)` for one text, `(b, t)` for a batch."""
        texts = _to_strings(texts)
        if texts.shape.rank == 0:
            return self._tokenize(texts[None])[0]
        return self._tokenize(texts)

    def detokenize(self, ids: Any) -> list[str]:
        """Returns the text of each row of ids `(b, t)`, or of one `(t,)`."""
        rows = keras.tree.map_structure(keras.ops.convert_to_numpy, ids)
        rows = [rows] if len(rows) and np.ndim(rows[0]) == 0 else rows
        if any(not 0 <= i < self.vocabulary_size for row in rows for i in row):
            raise ValueError(
                f"`ids` must be in [0, {self.vocabulary_size}). Received: {ids}"
            )
        return [self._detokenize([int(i) for i in row if i]) for row in rows]

    def to_text(self, ids: Any) -> Any:
        """Returns the texts of ids, also in `tf.function` and SavedModels.

        They are those of `detokenize`. Padding is left out, wherever it is.

        Args:
            ids: integer tensor or array `(t,)` or `(b, t)`. Ids that the
                tokenizer does not have are an error of the whole batch.

        Returns:
            A TensorFlow tensor of strings, `()` or `(b,)`.
        """
        tf = import_late("tensorflow")
        ids = tf.cast(tf.convert_to_tensor(ids), tf.int32)
        if ids.shape.rank not in (1, 2):
            raise ValueError(
                "`ids` must have the shape (t,) or (b, t). Received: shape "
                f"{ids.shape}"
            )
        is_known = (ids >= 0) & (ids < self.vocabulary_size)
        message = f"`ids` must be in [0, {self.vocabulary_size})."
        check = tf.debugging.Assert(tf.reduce_all(is_known), [message, ids])
        with tf.control_dependencies([] if check is None else [check]):
            return self._join(ids)

    def get_config(self) -> dict[str, Any]:
        return {"max_length": self.max_length}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**config)


@keras.saving.register_keras_serializable(package="keras_rfa")
class ByteTokenizer(_Tokenizer):
    """Turns texts into the bytes of their UTF-8 form.

    The id of a byte is its value plus one, and 0 is padding: 257 ids, and no
    text is out of vocabulary, zero bytes and malformed UTF-8 included. Any
    TensorFlow model server has the operations.

    Args:
        max_length: int. Where to cut texts, in tokens, here even inside of a
            character. `None` keeps them whole.

    Call arguments:
        texts: a string, a list or NumPy array of strings, or a string tensor
            of shape `()` or `(b,)`; eager, in `tf.data` or in `tf.function`.

    Returns:
        An int32 TensorFlow tensor `(t,)` for one string, else `(b, t)`, with
        `t` of the longest text but at least 1. An empty text is padding only.

    Example:

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer(["Hi", "a"]).numpy().tolist()
    [[73, 106], [98, 0]]
    """

    vocabulary_size = 257

    def _tokenize(self, texts: Any) -> Any:
        tf = import_late("tensorflow")
        if self.max_length is not None:
            texts = tf.strings.substr(texts, 0, self.max_length)
        lengths = tf.strings.length(texts)
        width = tf.maximum(tf.reduce_max(lengths), 1)
        values = tf.io.decode_raw(texts, tf.uint8, fixed_length=width)
        # Only the length tells a zero byte of the text from padding.
        is_text = tf.sequence_mask(lengths, width, tf.int32)
        return (tf.cast(values, tf.int32) + 1) * is_text

    def _detokenize(self, ids: list[int]) -> str:
        return bytes(i - 1 for i in ids).decode("utf-8", errors="replace")

    def _join(self, ids: Any) -> Any:
        tf = import_late("tensorflow")
        table = tf.constant([b"", *(bytes([i]) for i in range(256))])
        texts = tf.strings.reduce_join(tf.gather(table, ids), axis=-1)
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", "replace")


@keras.saving.register_keras_serializable(package="keras_rfa")
class WordpieceTokenizer(_Tokenizer):
    """Turns texts into words, and rare words into pieces.

    A text is split at white space, around punctuation and around Chinese
    characters. Each word is covered from left to right, always by the longest
    piece that fits; a piece inside a word is spelled `##piece`. A word that
    cannot be covered, or of more than 100 bytes, is one unknown token. Bytes
    that are not UTF-8 are read as U+FFFD. Id 0 is padding, which no text
    yields: brackets are punctuation, so "[PAD]" is three words. A SavedModel
    holds the vocabulary; import `tensorflow_text` before loading it.

    Args:
        vocabulary: list of different strings, `"[PAD]"` first, such as
            `learn_vocabulary(texts, 8000)` returns.
        lowercase: bool. Whether to fold case first (NFKC case folding:
            ligatures and full-width letters become plain too), as in the
            vocabulary.
        max_length: as in `ByteTokenizer`, and so are call and return.
        unknown_token: string, the one of the vocabulary for all other words.

    Example:

    >>> tokenizer = WordpieceTokenizer(["[PAD]", "[UNK]", "a", "film", "##s"])
    >>> tokenizer(["Films!", "a film"]).numpy().tolist()
    [[3, 4, 1], [2, 3, 0]]
    >>> tokenizer.detokenize([[3, 4, 1], [2, 3, 0]])
    ['films [UNK]', 'a film']

    References:
        - [Song et al., 2021](https://arxiv.org/abs/2012.15524)
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        lowercase: bool = True,
        max_length: int | None = None,
        unknown_token: str = "[UNK]",
    ) -> None:
        super().__init__(max_length)
        self.vocabulary = check_pieces("vocabulary", vocabulary, unknown_token)
        if unknown_token == "[PAD]" or len(self.vocabulary) < 3:
            raise ValueError(
                "`vocabulary` must hold '[PAD]', an `unknown_token` that is "
                "another string, and pieces of words. Received: "
                f"vocabulary={list(self.vocabulary)}, "
                f"unknown_token={unknown_token!r}"
            )
        self.vocabulary_size = len(self.vocabulary)
        self.lowercase = lowercase
        self.unknown_token = unknown_token

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return super().get_config() | {
            "vocabulary": list(self.vocabulary),
            "lowercase": self.lowercase,
            "unknown_token": self.unknown_token,
        }

    @functools.cached_property
    def _splitter(self) -> Any:
        tf, tf_text = import_late("tensorflow"), import_late("tensorflow_text")
        # Eager even if the first call is inside a graph: it outlives that.
        with tf.init_scope(), tf.device("CPU:0"):
            return tf_text.FastWordpieceTokenizer(
                self.vocabulary, "##", 100, tf.int32, self.unknown_token
            )

    def _normalize(self, texts: Any) -> Any:
        tf, tf_text = import_late("tensorflow"), import_late("tensorflow_text")
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", "replace")
        return tf_text.case_fold_utf8(texts) if self.lowercase else texts

    def split(self, texts: Any) -> list[list[bytes]]:
        """Returns the words of each text, as the tokenizer finds them."""
        strings = self._normalize(_to_strings(texts))
        _, starts, ends = self._splitter.tokenize_with_offsets(strings)
        spans = zip(starts.to_list(), ends.to_list(), strict=True)
        return [
            [text[i:j] for i, j in zip(*span, strict=True)]
            for text, span in zip(strings.numpy(), spans, strict=True)
        ]

    def _tokenize(self, texts: Any) -> Any:
        tf = import_late("tensorflow")
        pieces = self._splitter.tokenize(self._normalize(texts))
        ids = pieces[:, : self.max_length].to_tensor()
        missing = tf.cast(tf.shape(ids)[1] == 0, tf.int32)
        return tf.pad(ids, [[0, 0], [0, missing]])

    def _detokenize(self, ids: list[int]) -> str:
        text = " ".join(self.vocabulary[i] for i in ids)
        return text.replace(" ##", "").removeprefix("##")

    def _join(self, ids: Any) -> Any:
        tf = import_late("tensorflow")
        # Each piece with the space before it.
        pieces = [f" {piece}".replace(" ##", "") for piece in self.vocabulary]
        table = tf.constant(["", *pieces[1:]])
        texts = tf.strings.reduce_join(tf.gather(table, ids), axis=-1)
        return tf.strings.regex_replace(texts, "^ ", "", replace_global=False)


def _to_strings(texts: Any) -> Any:
    try:
        texts = import_late("tensorflow").convert_to_tensor(texts, "string")
        texts.shape.with_rank_at_most(1)
    except (TypeError, ValueError) as error:
        raise ValueError(
            "`texts` must be a string or a list of them, which UTF-8 can "
            f"encode. Received: {texts!r}"
        ) from error
    return texts


def check_pieces(name: str, pieces: Any, *needed: str) -> tuple[str, ...]:
    """Returns a tuple of different strings, or raises a `ValueError`."""
    if isinstance(pieces, str):
        raise ValueError(
            f"`{name}` must be a list of strings, such as the lines of a file: "
            f"`path.read_text().splitlines()`. Received: {name}={pieces!r}"
        )
    pieces = list(pieces)
    counts = collections.Counter(map(str, pieces))
    wrong = [p for p in pieces if not isinstance(p, str) or counts[p] > 1]
    missing = [p for p in ("[PAD]", *needed) if p not in counts]
    if wrong or missing or pieces[0] != "[PAD]":
        raise ValueError(
            f"`{name}` must be different strings, first '[PAD]'. Received: "
            f"missing {missing}, repeated or not strings {wrong}."
        )
    return tuple(pieces)
