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
    reserved = list(check_pieces("reserved_tokens", reserved_tokens))
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
    most = min(1000, (vocabulary_size - len(reserved)) // 4)
    letters = _most_frequent_letters(words, most)
    # The tokenizer has no use for pieces of words with other letters.
    words = {w: n for w, n in words.items() if letters.issuperset(_split(w))}
    if words:
        pieces = _learn(words, vocabulary_size, reserved)
    else:
        pieces = list(reserved)
    pieces += sorted(letters - set(pieces))
    parts = [p for p in pieces if len(p.removeprefix("##")) > 1]
    parts = [p for p in parts if p not in reserved]
    rarest = set(parts[::-1][: max(0, len(pieces) - vocabulary_size)])
    if verbose:
        print(f"{len(pieces) - len(rarest)} pieces of {len(counts)} words")
    return [piece for piece in pieces if piece not in rarest]


def _split(word: str) -> list[str]:
    """Returns the letters of a word, as pieces."""
    return [word[0], *(f"##{letter}" for letter in word[1:])]


def _most_frequent_letters(words: dict[str, int], most: int) -> set[str]:
    """Returns letters, as the pieces that occur."""
    counts = collections.Counter[str]()
    forms = set()
    for word, count in words.items():
        for piece in _split(word):
            counts[piece[-1]] += count
            forms.add(piece)
    ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))
    kept = set(ranked[:most])
    return {piece for piece in forms if piece[-1] in kept}


def _learn(
    words: dict[str, int], vocabulary_size: int, reserved: Sequence[str]
) -> list[str]:
    """Returns reserved tokens, and pieces of words, the most frequent first."""
    # The count of the last word that would fit in, were all pieces words.
    last = sorted(words.values(), reverse=True)[:vocabulary_size][-1]
    tools = "tensorflow_text.tools.wordpiece_vocab"
    return list(
        import_late(f"{tools}.wordpiece_tokenizer_learner_lib").learn(
            words,
            vocabulary_size,
            list(reserved),
            upper_thresh=4 * last,
            lower_thresh=last,
        )
    )
