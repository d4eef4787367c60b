"""The pieces of words that a corpus is made of."""

import collections
import itertools
from collections.abc import Iterable, Sequence

from keras_rfa.ops.checks import check_positive
from keras_rfa.text.late_import import import_late
from keras_rfa.text.tokenizers import WordpieceTokenizer, check_pieces


def learn_vocabulary(
    texts: Iterable[str],
    vocabulary_size: int,
    lowercase: bool = True,
    reserved_tokens: Sequence[str] = ("[PAD]", "[UNK]"),
    verbose: bool = False,
) -> list[str]:
    """Learns the vocabulary of a `WordpieceTokenizer` from texts.

    The pieces are the most frequent parts of words, and all letters, at the
    start of a word and inside it: no word of known letters is unknown. Letters
    are left out, rarest first, above 1,000 or half of the vocabulary.

    Args:
        texts: any iterable of strings; it is read once.
        vocabulary_size: int. The most strings to return. Large corpora give
            over 95 % of them.
        lowercase: bool, as in the tokenizer.
        reserved_tokens: list of strings, what comes first in the vocabulary.
        verbose: bool. Whether to print the counts.

    Returns:
        List of strings, the `vocabulary` of a `WordpieceTokenizer`.

    Raises:
        ValueError: if the size is too small, or if there is no word.

    Example:

    >>> vocabulary = keras_rfa.text.learn_vocabulary(texts, 8000)
    >>> tokenizer = keras_rfa.text.WordpieceTokenizer(vocabulary)
    """
    if isinstance(texts, str | bytes):
        raise ValueError("`texts` must be several strings. Received: one.")
    reserved = check_pieces("reserved_tokens", reserved_tokens)
    check_positive("vocabulary_size", vocabulary_size, 4 + len(reserved))
    # Words are where the tokenizer finds them, whatever its pieces.
    tokenizer = WordpieceTokenizer(["[PAD]", "[UNK]", "a"], lowercase)
    counts = collections.Counter[bytes]()
    remaining = iter(texts)
    while chunk := list(itertools.islice(remaining, 1024)):
        for words_of_text in tokenizer.split(chunk):
            counts.update(words_of_text)
    # No piece may hold a NUL.
    words = {w.decode(): n for w, n in sorted(counts.items()) if 0 not in w}
    if not words:
        raise ValueError("`texts` must hold words. Received: none.")
    # The count of the last word that would fit in, were all pieces words.
    last = sorted(words.values(), reverse=True)[:vocabulary_size][-1]
    tools = "tensorflow_text.tools.wordpiece_vocab"
    vocabulary = import_late(f"{tools}.wordpiece_tokenizer_learner_lib").learn(
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
