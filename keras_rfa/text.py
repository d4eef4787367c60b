"""Text in: tokenizers, a vocabulary learner, batches of documents.

TensorFlow's string operations do the work, whatever the Keras backend. They
are imported when first needed, not with this module. If they are missing or
broken, that is an ImportError.
"""

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
            _check_positive(max_length=max_length)
        self.max_length = max_length

    def __call__(self, texts: Any) -> Any:
        """Return ids of shape `(t,)` for one text, `(b, t)` for a batch."""
        texts = _to_strings(texts)
        if texts.shape.rank == 1:
            return self._tokenize(texts)
        if texts.shape.rank == 0:
            return self._tokenize(texts[None])[0]
        raise ValueError(
            "`texts` must be one string or a batch of strings, of shape () or "
            f"(b,). Received: texts of shape {texts.shape}."
        )

    def detokenize(self, ids: Any) -> list[str]:
        """Return the text of each row of ids `(b, t)`, without its padding.

        One row `(t,)` will do, and so will a list of rows of any lengths.
        """
        if not isinstance(ids, list | tuple):
            ids = keras.ops.convert_to_numpy(ids)
        rows = [ids] if len(ids) and np.ndim(ids[0]) == 0 else ids
        rows = [keras.ops.convert_to_numpy(row) for row in rows]
        for row in rows:
            if np.any((row < 0) | (row >= self.vocabulary_size)):
                raise ValueError(
                    "`ids` must be from 0 to `vocabulary_size - 1`, which is "
                    f"{self.vocabulary_size - 1}. Received: ids={row}."
                )
        return [self._detokenize(row[row > 0].astype(int)) for row in rows]

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {"max_length": self.max_length}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Return the tokenizer that `get_config` describes."""
        return cls(**config)


@keras.saving.register_keras_serializable(package="keras_rfa")
class ByteTokenizer(_Tokenizer):
    """Turns texts into the bytes of their UTF-8 form.

    The id of a byte is its value plus one, and 0 is padding: 257 ids, and no
    text is out of vocabulary, zero bytes and malformed UTF-8 included. Any
    TensorFlow model server has the operations.

    Args:
        max_length: Cut texts after so many tokens, which may split a
            character here. `None` keeps them whole.

    Call arguments:
        texts: A string, a list or NumPy array of strings, or a string tensor
            of shape `()` or `(b,)`: eagerly, in `tf.data.Dataset.map`, in
            `tf.function` or in a SavedModel.

    Returns:
        An int32 TensorFlow tensor of shape `(t,)` for one string, else
        `(b, t)`, as long as the longest text of the batch but at least 1: an
        empty text is a row of padding.

    Example:

    >>> tokenizer = ByteTokenizer()
    >>> tokenizer(["Hi", "a"]).numpy().tolist()
    [[73, 106], [98, 0]]
    >>> tokenizer.detokenize([[73, 106], [98, 0]])
    ['Hi', 'a']
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

    def _detokenize(self, ids: Any) -> str:
        return bytes((ids - 1).tolist()).decode("utf-8", errors="replace")


@keras.saving.register_keras_serializable(package="keras_rfa")
class WordpieceTokenizer(_Tokenizer):
    """Turns texts into words, and rare words into pieces.

    A text is split at white space, around punctuation and around Chinese
    characters. Each word is covered from left to right, always by the longest
    piece that fits; a piece inside a word is spelled `##piece`. A word that
    cannot be covered, or of more than 100 bytes, is one unknown token. Bytes
    that are not UTF-8 are read as U+FFFD. Id 0 is padding, which no text
    yields: brackets are punctuation, so "[PAD]" is three words.

    The graph holds the vocabulary. A program that loads a SavedModel with
    this tokenizer in it must import `tensorflow_text` first.

    Args:
        vocabulary: Different strings, `"[PAD]"` first, such as
            `learn_vocabulary` returns.
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
        self.vocabulary = _check_pieces(vocabulary=vocabulary)
        self.vocabulary_size = len(self.vocabulary)
        self.lowercase = lowercase
        self.unknown_token = unknown_token
        if unknown_token not in self.vocabulary[1:]:
            raise ValueError(
                "`unknown_token` must be in `vocabulary`, after '[PAD]'. "
                f"Received: unknown_token={unknown_token!r}."
            )

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            "vocabulary": list(self.vocabulary),
            "lowercase": self.lowercase,
            "unknown_token": self.unknown_token,
            **super().get_config(),
        }

    @functools.cached_property
    def _splitter(self) -> Any:
        tf, tf_text = _import("tensorflow"), _import("tensorflow_text")
        # Eager even if the first call is inside a graph: it outlives that.
        with tf.init_scope(), tf.device("CPU:0"):
            return tf_text.FastWordpieceTokenizer(
                self.vocabulary,
                token_out_type=tf.int32,
                unknown_token=self.unknown_token,
            )

    def _normalize(self, texts: Any) -> Any:
        tf, tf_text = _import("tensorflow"), _import("tensorflow_text")
        texts = tf.strings.unicode_transcode(
            texts, "UTF-8", "UTF-8", errors="replace"
        )
        return tf_text.case_fold_utf8(texts) if self.lowercase else texts

    def _tokenize(self, texts: Any) -> Any:
        tf = _import("tensorflow")
        pieces = self._splitter.tokenize(self._normalize(texts))
        ids = pieces[:, : self.max_length].to_tensor()
        missing = tf.cast(tf.shape(ids)[1] == 0, tf.int32)
        return tf.pad(ids, [[0, 0], [0, missing]])

    def _detokenize(self, ids: Any) -> str:
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
    start of a word and inside it: no word of known letters is unknown. The
    rarest letters are left out if there are more than 1,000, or if they would
    take over half of the vocabulary. The order of the texts does not matter.

    Args:
        texts: Any iterable of strings; it is read once.
        vocabulary_size: How many strings to return. A small corpus may have
            fewer.
        lowercase: As in the tokenizer.
        reserved_tokens: What comes first in the vocabulary.
        verbose: Print the counts.

    Example:

    ```python
    tokenizer = WordpieceTokenizer(learn_vocabulary(texts, 8000))
    ```
    """
    reserved = _check_pieces(reserved_tokens=reserved_tokens)
    max_letters = (vocabulary_size - len(reserved)) // 4
    _check_positive(vocabulary_size=vocabulary_size, letters=max_letters)
    # Words are where the tokenizer finds them, whatever its pieces.
    tokenizer = WordpieceTokenizer(["[PAD]", "[UNK]", "a"], lowercase)
    tally = collections.Counter[bytes]()
    remaining = iter(texts)
    while chunk := list(itertools.islice(remaining, 1024)):
        strings = tokenizer._normalize(_to_strings(chunk))
        _, starts, ends = tokenizer._splitter.tokenize_with_offsets(strings)
        spans = zip(starts.to_list(), ends.to_list(), strict=True)
        for text, (i, j) in zip(strings.numpy(), spans, strict=True):
            tally.update(text[slice(*span)] for span in zip(i, j, strict=True))
    # No piece may hold a NUL.
    words = {w.decode(): n for w, n in sorted(tally.items()) if 0 not in w}
    if not words:
        raise ValueError("`texts` must hold words. Received: none.")
    learner = _import(
        "tensorflow_text.tools.wordpiece_vocab.wordpiece_tokenizer_learner_lib"
    )
    # Find how often a part of words must occur, to get just enough of them.
    # Their number falls with about the power -2/3 of that.
    frequencies = sorted(words.values(), reverse=True)
    guess = 1.5 * frequencies[min(vocabulary_size, len(words)) - 1]
    low, high = 0, frequencies[0] + 1
    enough: list[str] = []
    while high - low > 1 and not 1 <= len(enough) / vocabulary_size < 1.05:
        threshold = min(max(int(guess), low + 1), high - 1)
        pieces = learner.learn(
            words,
            vocabulary_size,
            list(reserved),
            upper_thresh=threshold,
            lower_thresh=threshold,
            max_unique_chars=min(1000, max_letters),
        )
        if verbose:
            print(f"{len(pieces)} pieces occur at least {threshold} times")
        if len(pieces) < vocabulary_size:
            high = threshold
        else:
            low, enough = threshold, pieces
        guess = threshold * (len(pieces) / vocabulary_size / 1.02) ** 1.5
    vocabulary = enough or pieces
    surplus = max(0, len(vocabulary) - vocabulary_size)
    parts = [p for p in vocabulary if len(p.removeprefix("##")) > 1]
    rarest = set(parts[len(parts) - surplus :])
    return [piece for piece in vocabulary if piece not in rarest]


def bucket_batches(
    dataset: Any,
    boundaries: Sequence[int],
    tokens_per_batch: int,
    shuffle_buffer: int | None = None,
    seed: int | None = None,
    drop_remainder: bool = False,
    multiple_of: int = 1,
) -> Any:
    """Batch documents with others of like length, in few different shapes.

    A document is padded to the first boundary that it does not exceed, or cut
    to the last. All batches of a boundary have one shape, so that a model is
    compiled once a boundary: its last batch is filled up with rows of padding,
    whose label and sample weight are 0. They add nothing to gradients. Metrics
    given as `compile(weighted_metrics=...)` leave them out; `metrics=...` and
    the mean loss that is reported count them, the loss as 0.

    Documents of one boundary keep their order. A batch comes as soon as it is
    full, and incomplete ones come at the end.

    Args:
        dataset: A `tf.data.Dataset` of `(ids, label)`, or of `ids` alone, not
            batched: integer ids `(t,)` and a label of known shape.
        boundaries: Increasing lengths, such as `[256, 512, 1024]`.
        tokens_per_batch: Most tokens of a batch, padding included; but it has
            at least one row.
        shuffle_buffer: Shuffle first, in a buffer of so many documents.
        seed: Seed of the shuffle; each epoch is shuffled anew.
        drop_remainder: Drop incomplete batches instead of filling them up.
        multiple_of: Round the number of rows down to a multiple of this (of
            devices, say), but to no less than it.

    Returns:
        A `tf.data.Dataset` of `(ids, label, sample_weight)` with shapes
        `(b, t)`, `(b, ...)` and `(b,)`, or of `ids`. The shapes are static if
        there is one boundary.

    Example:

    ```python
    dataset = tf.data.Dataset.from_tensor_slices((texts, labels))
    dataset = dataset.map(lambda text, label: (tokenizer(text), label))
    model.fit(bucket_batches(dataset, [256, 512, 1024], 16384))
    ```
    """
    tf = _import("tensorflow")
    lengths = list(boundaries)
    _check_positive(tokens_per_batch=tokens_per_batch, multiple_of=multiple_of)
    if not lengths or lengths != sorted({0, *lengths})[1:]:
        raise ValueError(
            "`boundaries` must be lengths, each more than the one before. "
            f"Received: boundaries={boundaries}."
        )
    spec = dataset.element_spec
    ids_spec, *label_spec = spec if isinstance(spec, tuple) else (spec,)
    if (
        len(label_spec) > 1
        or ids_spec.shape.rank != 1
        or not ids_spec.dtype.is_integer
        or not all(label.shape.is_fully_defined() for label in label_spec)
    ):
        raise ValueError(
            "`dataset` must hold (ids, label) or ids, not batched: integer ids "
            "of shape (t,) and a label of known shape. Received: elements of "
            f"{spec}."
        )
    sizes = [
        max(1, tokens_per_batch // (length * multiple_of)) * multiple_of
        for length in lengths
    ]

    def cut(ids: Any, *label: Any) -> Any:
        return ids[: lengths[-1]], *label

    def fill(ids: Any, *label: Any) -> Any:
        size = tf.gather(sizes, tf.searchsorted(lengths, tf.shape(ids)[1:]))[0]
        weight = tf.ones_like(ids[:, 0], tf.float32)
        filled = []
        for x in (ids, *label, weight):
            missing = [[0, size - tf.shape(x)[0]]] + [[0, 0]] * (
                x.shape.rank - 1
            )
            static = sizes[0] if len(sizes) == 1 else None
            filled.append(
                tf.ensure_shape(tf.pad(x, missing), [static, *x.shape[1:]])
            )
        return tuple(filled) if label else filled[0]

    dataset = dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE)
    if shuffle_buffer is not None:
        dataset = dataset.shuffle(shuffle_buffer, seed)
    # Its limits are exclusive, and it pads to one less.
    dataset = dataset.bucket_by_sequence_length(
        lambda ids, *label: tf.shape(ids)[0],
        [length + 1 for length in lengths],
        [*sizes, 1],
        padded_shapes=([None], *(label.shape for label in label_spec)),
        pad_to_bucket_boundary=True,
        drop_remainder=drop_remainder,
    )
    return dataset.map(fill).prefetch(tf.data.AUTOTUNE)


def _import(name: str) -> Any:
    """Import a module that TensorFlow or TensorFlow Text brings."""
    broken: tuple[type[Exception], ...] = (ImportError,)
    try:
        # The sign of a TensorFlow Text that is not made for this TensorFlow.
        broken += (importlib.import_module("tensorflow").errors.NotFoundError,)
        return importlib.import_module(name)
    except broken as error:
        raise ImportError(
            f"`{name}` cannot be imported: {error}. "
            'Install it with `pip install "keras_rfa[text]"`.'
        ) from error


def _to_strings(texts: Any) -> Any:
    tf = _import("tensorflow")
    try:
        return tf.convert_to_tensor(texts, tf.string)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`texts` must hold strings. Received: texts={texts!r}."
        ) from error


def _check_positive(**arguments: Any) -> None:
    for name, value in arguments.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(
                f"`{name}` must be a positive integer. "
                f"Received: {name}={value!r}."
            )
