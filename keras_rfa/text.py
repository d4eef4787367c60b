"""Tokenizers, a vocabulary learner and length buckets, all on TensorFlow."""

import collections
import functools
import importlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Self

import keras
import numpy as np


class _Tokenizer:
    """What both tokenizers share: the forms of input, output and config."""

    vocabulary_size: int
    _tokenize: Any
    _detokenize: Any

    def __init__(self, max_length: int | None = None) -> None:
        if max_length is not None:
            _check_positive("max_length", max_length)
        self.max_length = max_length

    def __call__(self, texts: Any) -> Any:
        """Return ids of shape `(t,)` for one text, `(b, t)` for a batch."""
        texts = _to_strings(texts)
        if texts.shape.rank == 0:
            return self._tokenize(texts[None])[0]
        return self._tokenize(texts)

    def detokenize(self, ids: Any) -> list[str]:
        """Return the text of each row of ids `(b, t)`, or of one row `(t,)`."""
        rows = keras.tree.map_structure(keras.ops.convert_to_numpy, ids)
        rows = [rows] if len(rows) and np.ndim(rows[0]) == 0 else rows
        if any(not 0 <= i < self.vocabulary_size for row in rows for i in row):
            raise ValueError(
                f"`ids` must be in [0, {self.vocabulary_size}). Received: {ids}"
            )
        return [self._detokenize([int(i) for i in row if i]) for row in rows]

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
        max_length: Cut texts after so many tokens, here even inside of a
            character. `None` keeps them whole.

    Call arguments:
        texts: A string, a list or NumPy array of strings, or a string tensor
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
        tf = _import("tensorflow")
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
        vocabulary: Different strings, `"[PAD]"` first, such as
            `learn_vocabulary(texts, 8000)` returns.
        lowercase: Fold case first (NFKC case folding: ligatures and
            full-width letters become plain too), as in the vocabulary.
        max_length: As in `ByteTokenizer`, and so are call and return.
        unknown_token: The string of the vocabulary for all other words.

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
        self.vocabulary = _check_pieces("vocabulary", vocabulary, unknown_token)
        self.vocabulary_size = len(self.vocabulary)
        self.lowercase = lowercase
        self.unknown_token = unknown_token

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return super().get_config() | {
            "vocabulary": list(self.vocabulary),
            "lowercase": self.lowercase,
            "unknown_token": self.unknown_token,
        }

    @functools.cached_property
    def _splitter(self) -> Any:
        tf, tf_text = _import("tensorflow"), _import("tensorflow_text")
        # Eager even if the first call is inside a graph: it outlives that.
        with tf.init_scope(), tf.device("CPU:0"):
            return tf_text.FastWordpieceTokenizer(
                self.vocabulary, "##", 100, tf.int32, self.unknown_token
            )

    def _normalize(self, texts: Any) -> Any:
        tf, tf_text = _import("tensorflow"), _import("tensorflow_text")
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", "replace")
        return tf_text.case_fold_utf8(texts) if self.lowercase else texts

    def _tokenize(self, texts: Any) -> Any:
        tf = _import("tensorflow")
        pieces = self._splitter.tokenize(self._normalize(texts))
        ids = pieces[:, : self.max_length].to_tensor()
        missing = tf.cast(tf.shape(ids)[1] == 0, tf.int32)
        return tf.pad(ids, [[0, 0], [0, missing]])

    def _detokenize(self, ids: list[int]) -> str:
        text = " ".join(self.vocabulary[i] for i in ids)
        return text.replace(" ##", "").removeprefix("##")


def learn_vocabulary(
    texts: Iterable[str],
    vocabulary_size: int,
    lowercase: bool = True,
    reserved_tokens: Sequence[str] = ("[PAD]", "[UNK]"),
    verbose: bool = False,
) -> list[str]:
    """Learn the vocabulary of a `WordpieceTokenizer` from texts.

    The pieces are the most frequent parts of words, and all letters, at the
    start of a word and inside it: no word of known letters is unknown. Letters
    are left out, rarest first, above 1,000 or half of the vocabulary.

    Args:
        texts: Any iterable of strings; it is read once.
        vocabulary_size: Most strings to return. Large corpora give over 95 %.
        lowercase: As in the tokenizer.
        reserved_tokens: What comes first in the vocabulary.
        verbose: Print the counts.
    """
    if isinstance(texts, str | bytes):
        raise ValueError("`texts` must be several strings. Received: one.")
    reserved = _check_pieces("reserved_tokens", reserved_tokens)
    _check_positive("vocabulary_size", vocabulary_size, 4 + len(reserved))
    # Words are where the tokenizer finds them, whatever its pieces.
    tokenizer = WordpieceTokenizer(["[PAD]", "[UNK]", "a"], lowercase)
    counts = collections.Counter[bytes]()
    remaining = iter(texts)
    while chunk := list(itertools.islice(remaining, 1024)):
        strings = tokenizer._normalize(_to_strings(chunk))
        _, starts, ends = tokenizer._splitter.tokenize_with_offsets(strings)
        spans = zip(starts.to_list(), ends.to_list(), strict=True)
        for text, span in zip(strings.numpy(), spans, strict=True):
            counts.update(text[i:j] for i, j in zip(*span, strict=True))
    # No piece may hold a NUL.
    words = {w.decode(): n for w, n in sorted(counts.items()) if 0 not in w}
    if not words:
        raise ValueError("`texts` must hold words. Received: none.")
    # The count of the last word that would fit in, were all pieces words.
    last = sorted(words.values(), reverse=True)[:vocabulary_size][-1]
    tools = "tensorflow_text.tools.wordpiece_vocab"
    vocabulary = _import(f"{tools}.wordpiece_tokenizer_learner_lib").learn(
        words,
        vocabulary_size,
        list(reserved),
        upper_thresh=4 * last,
        lower_thresh=last,
        max_unique_chars=min(1000, (vocabulary_size - len(reserved)) // 4),
    )
    parts = [p for p in vocabulary if len(p.removeprefix("##")) > 1]
    rarest = set(parts[::-1][: max(0, len(vocabulary) - vocabulary_size)])
    if verbose:
        print(f"{len(vocabulary) - len(rarest)} pieces of {len(words)} words")
    return [piece for piece in vocabulary if piece not in rarest]


def bucket_batches(
    dataset: Any,
    boundaries: Sequence[int],
    tokens_per_batch: int,
    shuffle_buffer: int | None = None,
    seed: int | None = None,
    drop_remainder: bool = False,
) -> Any:
    """Batch documents with others of like length, in few different shapes.

    A document is padded to the first boundary that it does not exceed, or cut
    to the last, in order. All batches of a boundary have one shape, so that a
    model is compiled once a boundary: rows of padding with label 0 and sample
    weight 0 complete the last one. They add nothing to gradients or to the
    `weighted_metrics` of `compile`; `metrics` and the mean loss count them.

    Args:
        dataset: A `tf.data.Dataset` of `(ids, label)`, or of `ids` alone, not
            batched: integer ids `(t,)` and a label of known shape.
        boundaries: Increasing lengths, such as `[256, 512, 1024]`.
        tokens_per_batch: A batch has `tokens_per_batch // boundary` rows, or 1.
        shuffle_buffer: Shuffle first, anew in each epoch, in such a buffer.
        seed: Seed of the shuffle.
        drop_remainder: Drop incomplete batches instead of completing them.

    Returns:
        A `tf.data.Dataset` of `(ids, label, sample_weight)` or of `(ids,)`.

    Example:

    ```python
    dataset = tf.data.Dataset.from_tensor_slices((texts, labels))
    dataset = dataset.map(lambda text, label: (tokenizer(text), label))
    model.fit(bucket_batches(dataset, [256, 512, 1024], 16384))
    ```
    """
    tf = _import("tensorflow")
    _check_positive("tokens_per_batch", tokens_per_batch)
    _check_positive("len(boundaries)", len(boundaries))
    for before, length in itertools.pairwise([0, *boundaries]):
        _check_positive("boundaries", length, before + 1)
    sizes = [max(1, tokens_per_batch // length) for length in boundaries]
    spec = dataset.element_spec
    ids, *label = spec if isinstance(spec, tuple) else (spec,)
    if len(label) > 1 or isinstance(ids, dict) or ids.shape.rank != 1:
        raise ValueError(
            "`dataset` must hold `(ids, label)` or `ids`, with ids of shape "
            f"(t,), not batched. Received: elements of {spec}."
        )

    def cut(ids: Any, *label: Any) -> Any:
        return ids[: boundaries[-1]], *label, *(1.0 for _ in label)

    dataset = dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE)
    ids, *rest = dataset.element_spec

    def filler(length: Any) -> Any:
        zeros = (tf.zeros(x.shape, x.dtype) for x in rest)
        return tf.zeros([length], ids.dtype), *zeros

    if shuffle_buffer is not None:
        dataset = dataset.shuffle(shuffle_buffer, seed)
    if not drop_remainder:
        # Enough to complete any batch; what is left over is dropped below.
        spare = np.repeat(boundaries, [size - 1 for size in sizes])
        fillers = tf.data.Dataset.from_tensor_slices(spare).map(filler)
        dataset = dataset.concatenate(fillers)
    # The limits are exclusive, and documents are padded to one less.
    dataset = dataset.bucket_by_sequence_length(
        lambda ids, *_: tf.shape(ids)[0],
        [length + 1 for length in boundaries],
        [*sizes, 1],
        padded_shapes=([None], *(x.shape for x in rest)),
        pad_to_bucket_boundary=True,
        drop_remainder=True,
    ).prefetch(2)
    # With autotune, closing an iterator can wait up to a minute for the tuner.
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@functools.cache
def _import(name: str) -> Any:
    """Import late, so that who has no text needs no TensorFlow."""
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


def _to_strings(texts: Any) -> Any:
    try:
        texts = _import("tensorflow").convert_to_tensor(texts, "string")
        texts.shape.with_rank_at_most(1)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`texts` must be a string or a list of them. Received: {texts!r}."
        ) from error
    return texts


def _check_positive(name: str, value: int, least: int = 1) -> None:
    if type(value) is not int or value < least:
        raise ValueError(
            f"`{name}` must be an int >= {least}. Received: {name}={value!r}."
        )


def _check_pieces(name: str, pieces: Any, *needed: str) -> tuple[str, ...]:
    counts = collections.Counter(map(str, pieces))
    wrong = [p for p in pieces if not isinstance(p, str) or counts[p] > 1]
    missing = [p for p in ("[PAD]", *needed) if p not in counts]
    if wrong or missing or pieces[0] != "[PAD]":
        raise ValueError(
            f"`{name}` must be different strings, first '[PAD]'. Received: "
            f"missing {missing}, repeated or not strings {wrong}."
        )
    return tuple(pieces)
