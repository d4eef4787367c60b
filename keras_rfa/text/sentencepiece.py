"""Pieces of sentences, spaces included: what translators read and write."""

import base64
import functools
import io
from collections.abc import Iterable
from typing import Any, Self

import keras

from keras_rfa.ops.checks import check_positive
from keras_rfa.text.late_import import import_late
from keras_rfa.text.sentencepiece_model import CONTROL, UNKNOWN, read_pieces
from keras_rfa.text.tokenizers import _Tokenizer

PADDING, UNKNOWN_PIECE, START, END = range(4)
_BYTES = 256


@keras.saving.register_keras_serializable(package="keras_rfa")
class SentencePieceTokenizer(_Tokenizer):
    """Turns texts into pieces of sentences, and pieces back into texts.

    A text is normalised (NFKC, and one space for any white space) and covered
    by the most probable pieces, of which spaces are a part: nothing else is
    lost, so that `detokenize` and `to_text`, which leave out start and end,
    give the normalised text again. Ids are 0 for padding, 1 unknown, 2 start
    and 3 end, and no text yields 0, 2 or 3: the spelling of a special piece is
    text like any other. A SavedModel holds the model; import `tensorflow_text`
    before loading it.

    Args:
        model: bytes, such as `learn_sentencepiece` returns, or those of any
            sentencepiece model with the four ids above.
        max_length: int. Where to cut texts, in tokens. Start and end count,
            and are kept. `None` keeps texts whole.
        add_start: bool. Whether 2 comes before each text.
        add_end: bool. Whether 3 comes after each text.

    Call arguments:
        texts: a string, a list or NumPy array of strings, or a string tensor
            of shape `()` or `(b,)`; eager, in `tf.data` or in `tf.function`.

    Returns:
        An int32 TensorFlow tensor `(t,)` for one string, else `(b, t)`, with
        `t` of the longest text but at least 1.

    Raises:
        ValueError: if the model is no such model, or if `max_length` leaves
            no room for text.

    Example:

    ```python
    model = keras_rfa.text.learn_sentencepiece(texts, 8000)
    tokenizer = keras_rfa.text.SentencePieceTokenizer(model, add_end=True)
    ids = tokenizer(["A small library.", "A game."])
    tokenizer.detokenize(ids)  # ['A small library.', 'A game.']
    ```

    References:
        - [Kudo and Richardson, 2018](https://arxiv.org/abs/1808.06226)
        - [Kudo, 2018](https://arxiv.org/abs/1804.10959)
    """

    start_token_id = START
    end_token_id = END

    def __init__(
        self,
        model: bytes,
        max_length: int | None = None,
        add_start: bool = False,
        add_end: bool = False,
    ) -> None:
        super().__init__(max_length)
        added = bool(add_start) + bool(add_end)
        if max_length is not None:
            check_positive("max_length", max_length, 1 + added)
        self.vocabulary = _check_model(model)
        self.vocabulary_size = len(self.vocabulary)
        self.model = bytes(model)
        self.add_start = bool(add_start)
        self.add_end = bool(add_end)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, the model in base 64."""
        return super().get_config() | {
            "model": base64.b64encode(self.model).decode("ascii"),
            "add_start": self.add_start,
            "add_end": self.add_end,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes a tokenizer of what `get_config` returned."""
        return cls(**{**config, "model": base64.b64decode(config["model"])})

    def _pieces(self) -> Any:
        """Returns TensorFlow Text's tokenizer, made where it is used.

        Made in a graph, it is a part of the graph, that any SavedModel can
        hold. TensorFlow reads the model once for each graph, and once for all
        eager calls.
        """
        import_late("tensorflow")
        return import_late("tensorflow_text").SentencepieceTokenizer(self.model)

    def _tokenize(self, texts: Any) -> Any:
        tf = import_late("tensorflow")
        room = self.max_length
        if room is not None:
            room -= self.add_start + self.add_end
        with tf.device("CPU:0"):
            pieces = self._pieces().tokenize(texts)[:, :room]
            column = tf.ones_like(texts, tf.int32)[:, None]
            parts = [START * column] * self.add_start + [pieces]
            parts += [END * column] * self.add_end
            ids = tf.concat(parts, axis=1).to_tensor()
            missing = tf.cast(tf.shape(ids)[1] == 0, tf.int32)
            return tf.pad(ids, [[0, 0], [0, missing]])

    def _join(self, ids: Any) -> Any:
        tf = import_late("tensorflow")
        with tf.device("CPU:0"):
            is_text = (ids == UNKNOWN_PIECE) | (ids > END)
            if ids.shape.rank == 1:
                return self._pieces().detokenize(ids[is_text])
            return self._pieces().detokenize(
                tf.ragged.boolean_mask(ids, is_text)
            )

    def _detokenize(self, ids: list[int]) -> str:
        text: bytes = self.to_text(ids or [PADDING]).numpy()
        return text.decode("utf-8", errors="replace")


def learn_sentencepiece(
    texts: Iterable[str],
    vocabulary_size: int,
    byte_fallback: bool = True,
    max_texts: int = 1_000_000,
    verbose: bool = False,
) -> bytes:
    """Learns the model of a `SentencePieceTokenizer` from texts.

    The same texts in the same order give the same model. Source and target of
    a translator can share one, learned from the texts of both.

    Args:
        texts: any iterable of strings; it is read once.
        vocabulary_size: int. The most pieces, special ones and bytes included.
            Small corpora give fewer.
        byte_fallback: bool. Whether characters that are not in the vocabulary
            are spelled by their bytes, 256 further pieces, so that no text is
            unknown. Without, they are unknown, and the vocabulary holds every
            character of the texts.
        max_texts: int. Of more texts, so many are drawn.
        verbose: bool. Whether to print what sentencepiece reports.

    Returns:
        Bytes, the `model` of a `SentencePieceTokenizer`.

    Raises:
        ValueError: if the size is too small, or if there is no text.
        ImportError: if the package `sentencepiece` is not installed.

    Example:

    >>> model = keras_rfa.text.learn_sentencepiece(texts, 8000)
    >>> tokenizer = keras_rfa.text.SentencePieceTokenizer(model)
    """
    if isinstance(texts, str | bytes):
        raise ValueError("`texts` must be several strings. Received: one.")
    special = END + 1 + (_BYTES if byte_fallback else 0)
    check_positive("vocabulary_size", vocabulary_size, special + 2)
    check_positive("max_texts", max_texts)
    learner = _import_sentencepiece()
    strings = [x for x in map(_clean, texts) if x.strip()]
    if not strings:
        raise ValueError("`texts` must hold words. Received: none.")
    written = io.BytesIO()
    learner.set_random_generator_seed(0)
    try:
        learner.SentencePieceTrainer.train(
            sentence_iterator=iter(strings),
            model_writer=written,
            model_type="unigram",
            vocab_size=vocabulary_size,
            hard_vocab_limit=False,
            byte_fallback=byte_fallback,
            character_coverage=0.9999 if byte_fallback else 1.0,
            pad_id=PADDING,
            unk_id=UNKNOWN_PIECE,
            bos_id=START,
            eos_id=END,
            max_sentence_length=2**30,
            input_sentence_size=max_texts,
            shuffle_input_sentence=True,
            # The sums depend on their number, so it is the same everywhere.
            num_threads=4,
            minloglevel=0 if verbose else 2,
        )
    except RuntimeError as error:
        raise ValueError(
            f"Nothing could be learned from {len(strings)} texts. Received: "
            f"vocabulary_size={vocabulary_size}. Sentencepiece says: {error}"
        ) from error
    return written.getvalue()


def _clean(text: Any) -> str:
    """Returns a text without what sentencepiece keeps for itself."""
    if not isinstance(text, str):
        raise ValueError(f"`texts` must be strings. Received: {text!r}")
    valid = text.encode("utf-8", "replace").decode("utf-8")
    return valid.replace("\0", " ").replace("\u2581", " ")


@functools.cache
def _import_sentencepiece() -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise ImportError(
            "Learning needs the package `sentencepiece`. Install it with "
            '`pip install "keras_rfa[sentencepiece]"`. Reading and writing '
            "texts by a model that was learned does not."
        ) from error
    return sentencepiece


def _check_model(model: Any) -> tuple[str, ...]:
    """Returns the pieces of a model, or raises a `ValueError`."""
    wanted = (
        "`model` must be the bytes of a sentencepiece model, such as "
        "`learn_sentencepiece` returns or `path.read_bytes()` reads"
    )
    if not isinstance(model, bytes | bytearray):
        raise ValueError(f"{wanted}. Received: {type(model).__name__}")
    try:
        pieces = read_pieces(bytes(model))
    except ValueError as error:
        raise ValueError(
            f"{wanted}. Received: {len(model)} other bytes. {error}"
        ) from error
    kinds = [kind for _, kind in pieces[: END + 1]]
    if kinds != [CONTROL, UNKNOWN, CONTROL, CONTROL]:
        first = [piece for piece, _ in pieces[: END + 1]]
        raise ValueError(
            f"{wanted}, with the ids 0 for padding, 1 unknown, 2 start and 3 "
            f"end. Received: first pieces {first}"
        )
    return tuple(piece for piece, _ in pieces)
