"""The vocabulary learner."""

import collections
import random

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations are in the graphs)
from programs import run_python

from keras_rfa.text import (
    WordpieceTokenizer,
    learn_vocabulary,
)

CORPUS = [
    "The film was good, and the filming better!",
    "It isn't the film's fault: 10 out of 10 films are worse.",
    "GOOD films, bad films; é à ü.",
    "unfilmable? un-filmed? the the the",
]


@pytest.mark.parametrize("lowercase", [True, False])
def test_learned_vocabulary_knows_its_texts(lowercase):
    vocabulary = learn_vocabulary(CORPUS, 200, lowercase)
    assert vocabulary[:2] == ["[PAD]", "[UNK]"]
    assert len(set(vocabulary)) == len(vocabulary) <= 200
    tokenizer = WordpieceTokenizer(vocabulary, lowercase)
    ids = tokenizer(CORPUS).numpy()
    assert not np.any(ids == 1)
    assert ("The" in vocabulary) is not lowercase
    counts = collections.Counter("".join(CORPUS).lower().split())
    assert counts["the"] > 2
    assert tokenizer("the").shape == (1,)
    # Letters were seen, the words were not.
    assert not np.any(tokenizer("mood dab hogs").numpy() == 1)


def test_learning_is_deterministic():
    vocabulary = learn_vocabulary(CORPUS, 150)
    assert learn_vocabulary((t for t in reversed(CORPUS)), 150) == vocabulary
    code = f"""
from keras_rfa.text import learn_vocabulary
print(learn_vocabulary({CORPUS!r}, 150))
"""
    printed = run_python(
        "-c", code, PYTHONHASHSEED="7", PYTHONIOENCODING="utf-8"
    ).stdout
    assert printed.splitlines()[-1] == str(vocabulary)


@pytest.mark.parametrize("size", [6, 10, 20, 30, 60])
def test_the_most_frequent_letters_are_kept(size):
    texts = ["the film was good and the film was bad"] * 3 + ["films filmed"]
    vocabulary = learn_vocabulary(texts, size)
    assert len(vocabulary) <= size
    counts = collections.Counter("".join(texts).replace(" ", ""))
    known = {piece[-1] for piece in vocabulary[2:]}
    missing = {letter for letter in counts if letter not in known}
    assert min(counts[x] for x in known) >= max(
        (counts[x] for x in missing), default=0
    )
    assert len(WordpieceTokenizer(vocabulary)("film")) > 0


def test_a_word_too_long_to_learn_leaves_its_letters():
    vocabulary = learn_vocabulary(["x" * 100_000], 10)
    assert set(vocabulary[2:]) == {"x", "##x"}


def test_vocabulary_size_is_a_limit():
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefgh", k=5)) for _ in range(3000)]
    texts = [" ".join(draw.choices(words, k=40)) for _ in range(300)]
    for size in (40, 150, 800):
        vocabulary = learn_vocabulary(texts, size)
        assert 0.5 * size < len(vocabulary) <= size
        tokenizer = WordpieceTokenizer(vocabulary)
        assert not np.any(tokenizer(texts).numpy() == 1)


def test_reserved_tokens_come_first():
    reserved = ("[PAD]", "<unk>", "[SEP]")
    vocabulary = learn_vocabulary(CORPUS, 150, reserved_tokens=reserved)
    assert tuple(vocabulary[:3]) == reserved
    tokenizer = WordpieceTokenizer(vocabulary, unknown_token="<unk>")
    assert tokenizer("漢 the").numpy()[0] == 1


def test_learning_from_strange_texts(capsys):
    texts = ["a\0b good", b"good \xff", "", "x" * 500, "good", tf.constant("z")]
    vocabulary = learn_vocabulary(texts, 100, verbose=True)
    assert capsys.readouterr().out.startswith(f"{len(vocabulary)} pieces of ")
    assert "good" in vocabulary
    assert "z" in vocabulary
    ids = WordpieceTokenizer(vocabulary)(["a\0b", "good"]).numpy().tolist()
    assert ids == [[1], [vocabulary.index("good")]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 100), "must hold words"),
        ((["", " "], 100), "must hold words"),
        (([1], 100), "`texts` must be a string"),
        (("a b", 100), "`texts` must be several strings"),
        ((CORPUS, 5), "`vocabulary_size` must be an integer of at least 6"),
        ((CORPUS, "9"), "`vocabulary_size` must be an int"),
        ((CORPUS, 99, True, ["[UNK]"]), "`reserved_tokens` must be different"),
    ],
)
def test_bad_learning(arguments, message):
    with pytest.raises(ValueError, match=message):
        learn_vocabulary(*arguments)
