"""Tokenizers against the same rules in plain Python."""

import copy
import importlib.util
import pickle
import string
import unicodedata

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations are in the graphs)
from hypothesis import given
from hypothesis import strategies as st
from programs import run_python

from keras_rfa.text import (
    ByteTokenizer,
    WordpieceTokenizer,
)

VOCABULARY = [
    *("[PAD]", "[UNK]", "a", "b", "c", "ab", "abc", "film", "un", "!", "漢"),
    *("##a", "##b", "##ab", "##s", "##bc", "##ing", "é", "##é", "'"),
]


def make_tokenizers():
    return [ByteTokenizer(), WordpieceTokenizer(VOCABULARY)]


def split_in_python(text):
    """Words and punctuation marks, as the tokenizer should find them."""
    words, word = [], ""
    for c in text:
        alone = (
            unicodedata.category(c).startswith("P")
            or c in string.punctuation
            or "\u4e00" <= c <= "\u9fff"
        )
        if alone or c.isspace():
            words += [word, c] if alone else [word]
            word = ""
        else:
            word += c
    return [w for w in [*words, word] if w]


def wordpiece_in_python(text, vocabulary):
    ids = {piece: i for i, piece in enumerate(vocabulary)}
    out = []
    for word in split_in_python(text):
        pieces, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = "##" * (start > 0) + word[start:end]
                if piece in ids:
                    break
            else:
                pieces = [ids["[UNK]"]]
                break
            pieces.append(ids[piece])
            start = end
        if len(word.encode()) > 100:
            pieces = [ids["[UNK]"]]
        out += pieces
    return out


def pad(rows):
    width = max([1, *map(len, rows)])
    return [[*row, *[0] * (width - len(row))] for row in rows]


@given(st.lists(st.binary(max_size=20) | st.text(max_size=20), max_size=5))
def test_bytes_match_python(texts):
    raw = [t.encode() if isinstance(t, str) else t for t in texts]
    ids = ByteTokenizer()(texts)
    assert ids.dtype == tf.int32
    assert ids.numpy().tolist() == pad([[b + 1 for b in r] for r in raw])
    decoded = [r.decode("utf-8", errors="replace") for r in raw]
    assert ByteTokenizer().detokenize(ids) == decoded
    found = ByteTokenizer().to_text(ids).numpy().tolist()
    assert [text.decode() for text in found] == decoded


def test_zero_bytes_are_text():
    ids = ByteTokenizer()(["\0a\0", "ab\0cd"]).numpy().tolist()
    assert ids == [[1, 98, 1, 0, 0], [98, 99, 1, 100, 101]]
    assert ByteTokenizer().detokenize(ids) == ["\0a\0", "ab\0cd"]


@given(
    st.lists(
        st.text("abcs ,!'漢é\n\u00a0\u2003«x", max_size=30)
        | st.lists(st.sampled_from(VOCABULARY), max_size=8).map("".join),
        max_size=5,
    )
)
def test_wordpieces_match_python(texts):
    tokenizer = WordpieceTokenizer(VOCABULARY, lowercase=False)
    expected = pad([wordpiece_in_python(t, VOCABULARY) for t in texts])
    assert tokenizer(texts).numpy().tolist() == expected


def test_case_is_folded_on_request():
    folded = WordpieceTokenizer(VOCABULARY)
    exact = WordpieceTokenizer(VOCABULARY, lowercase=False)
    assert folded("FILM Ａbc É").numpy().tolist() == [7, 6, 17]
    assert exact("FILM Ａbc É").numpy().tolist() == [1, 1, 1]


@pytest.mark.parametrize("word", ["abab" * 25 + "b", "a" * 100_000])
def test_overlong_words_are_unknown(word):
    tokenizer = WordpieceTokenizer(VOCABULARY)
    assert tokenizer(f"a {word} b").numpy().tolist() == [2, 1, 3]
    longest = tokenizer("ab" * 50).numpy().tolist()
    assert longest == [5, *[VOCABULARY.index("##ab")] * 49]


@pytest.mark.parametrize(
    "text", [b"\xff\xfe", b"a\xffb", "😀", "\0", b"\xed\xa0\x80"]
)
def test_wordpieces_of_strange_text_are_unknown(text):
    assert WordpieceTokenizer(VOCABULARY)([text]).numpy().tolist() == [[1]]


@pytest.mark.parametrize("tokenizer", make_tokenizers())
def test_padding_never_comes_out_of_text(tokenizer):
    assert 0 not in tokenizer("[PAD] [pad] \0 0").numpy().tolist()


def test_detokenize_joins_pieces():
    tokenizer = WordpieceTokenizer(VOCABULARY)
    texts = ["abcab films !", "a [UNK] filming", ""]
    ids = tokenizer([texts[0], "a zz filming", ""])
    assert tokenizer.detokenize(ids) == texts
    assert tokenizer.detokenize(ids.numpy()) == texts
    assert tokenizer.detokenize(keras.ops.convert_to_tensor(ids)) == texts
    assert tokenizer.detokenize([[2, 12], [5]]) == ["ab", "ab"]
    assert tokenizer.detokenize(tokenizer("films")) == ["films"]
    assert tokenizer.detokenize([]) == []


@pytest.mark.parametrize("tokenizer", make_tokenizers())
@given(data=st.data())
def test_texts_in_graphs_are_those_of_detokenize(tokenizer, data):
    largest = tokenizer.vocabulary_size - 1
    row = st.lists(st.integers(0, largest), min_size=7, max_size=7)
    # Whole characters, parts of them, and padding in between.
    ids = np.asarray(data.draw(st.lists(row, min_size=1, max_size=3)))
    texts = tokenizer.to_text(ids)
    assert texts.dtype == tf.string
    assert [x.decode() for x in texts.numpy()] == tokenizer.detokenize(ids)
    (alone,) = tokenizer.detokenize(ids[0])
    assert tokenizer.to_text(ids[0]).numpy().decode() == alone


@pytest.mark.parametrize("tokenizer", make_tokenizers())
def test_to_text_in_graphs(tokenizer):
    graph = tf.function(
        tokenizer.to_text,
        input_signature=[tf.TensorSpec((None, None), tf.int64)],
        autograph=False,
    )
    assert (
        graph([[2, 0], [2, 2]]).numpy().tolist()
        == {
            257: [b"\1", b"\1\1"],
            len(VOCABULARY): [b"a", b"a a"],
        }[tokenizer.vocabulary_size]
    )
    assert graph(np.zeros((1, 0), "int64")).numpy().tolist() == [b""]
    assert graph(np.zeros((0, 3), "int64")).numpy().tolist() == []
    for ids in ([[-1]], [[tokenizer.vocabulary_size]]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be in"):
            graph(ids)
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be in"):
            tokenizer.to_text(ids)
    with pytest.raises(ValueError, match=r"`ids` must have the shape"):
        tokenizer.to_text(3)


@pytest.mark.parametrize("tokenizer", make_tokenizers())
def test_shapes(tokenizer):
    one = tokenizer("ab")
    assert one.shape.rank == 1
    for batch in (["ab"], np.array(["ab"]), tf.constant(["ab"])):
        assert tokenizer(batch).numpy().tolist() == [one.numpy().tolist()]
    for empty, shape in [
        ("", (1,)),
        ([""], (1, 1)),
        (["", ""], (2, 1)),
        ([], (0, 1)),
        (np.array([], dtype=str), (0, 1)),
    ]:
        assert tokenizer(empty).shape == shape
        assert not np.any(tokenizer(empty))
    ids = tokenizer(["", "ab c"]).numpy()
    assert not ids[0].any()
    assert ids[1].all()


@pytest.mark.parametrize("tokenizer", make_tokenizers())
def test_max_length_cuts(tokenizer):
    texts = ["a b c", "a", ""]
    whole = tokenizer(texts).numpy()
    config = {**tokenizer.get_config(), "max_length": 2}
    cut = type(tokenizer).from_config(config)
    assert cut(texts).numpy().tolist() == whole[:, :2].tolist()
    assert cut("a b c").shape == (2,)
    assert cut(["a"]).shape == (1, 1)


def test_max_length_splits_characters_of_bytes():
    tokenizer = ByteTokenizer(max_length=2)
    assert tokenizer.detokenize(tokenizer(["aé"])) == ["a\ufffd"]


@pytest.mark.parametrize("tokenizer", make_tokenizers())
def test_graphs_give_the_eager_ids(tokenizer):
    texts = ["abc film", "", "é!"]
    expected = tokenizer(texts).numpy().tolist()
    fresh = type(tokenizer).from_config(tokenizer.get_config())
    dataset = tf.data.Dataset.from_tensor_slices(texts)
    single = [x.tolist() for x in dataset.map(fresh).as_numpy_iterator()]
    assert pad([[i for i in row if i] for row in single]) == expected
    (batch,) = dataset.batch(3).map(fresh).as_numpy_iterator()
    assert batch.tolist() == expected
    assert tf.function(fresh)(tf.constant(texts)).numpy().tolist() == expected
    # What was made inside a graph serves outside of it.
    assert fresh(texts).numpy().tolist() == expected


def test_graphs_are_built_without_warnings(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("""
import tensorflow as tf
from keras_rfa.text import ByteTokenizer, WordpieceTokenizer

for tokenizer in ByteTokenizer(), WordpieceTokenizer(["[PAD]", "[UNK]", "a"]):
    @tf.function
    def tokenize(texts):
        return tokenizer(texts)
    tokenize(tf.constant(["a"]))
""")
    assert "AutoGraph" not in run_python(script).stderr


@pytest.mark.parametrize("index", [0, 1])
def test_saved_model_stands_alone(index, tmp_path):
    tokenizer = make_tokenizers()[index]
    module = tf.Module()
    spec = tf.TensorSpec([None], tf.string)
    module.tokenize = tf.function(tokenizer, input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path))
    code = f"""
import sys, tensorflow as tf
{"import tensorflow_text" if index else ""}
model = tf.saved_model.load(sys.argv[1])
for texts in (["abc film \\0", "", "\\xe9!"], [""], []):
    print(model.tokenize(tf.constant(texts, tf.string)).numpy().tolist())
assert "keras_rfa" not in sys.modules
assert {bool(index)} or "tensorflow_text" not in sys.modules
"""
    expected = [
        tokenizer(texts).numpy().tolist()
        for texts in (["abc film \0", "", "é!"], [""], [])
    ]
    printed = run_python("-c", code, tmp_path).stdout.splitlines()
    assert printed == list(map(str, expected))


@pytest.mark.parametrize(
    "tokenizer",
    [
        ByteTokenizer(max_length=3),
        WordpieceTokenizer(
            [*VOCABULARY, "<unk>"], False, 4, unknown_token="<unk>"
        ),
    ],
)
def test_serialization(tokenizer):
    config = keras.saving.serialize_keras_object(tokenizer)
    assert config["registered_name"] == f"keras_rfa>{type(tokenizer).__name__}"
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(tokenizer)
    assert again.get_config() == tokenizer.get_config()
    texts = ["Abc zz film ab", "é"]
    assert again(texts).numpy().tolist() == tokenizer(texts).numpy().tolist()


def test_tokenizers_are_copied_and_pickled_after_use():
    for tokenizer in make_tokenizers():
        expected = tokenizer(["ab films"]).numpy().tolist()
        for again in (
            copy.deepcopy(tokenizer),
            pickle.loads(pickle.dumps(tokenizer)),
        ):
            assert again(["ab films"]).numpy().tolist() == expected


def test_vocabulary_size():
    assert ByteTokenizer().vocabulary_size == 257
    tokenizer = WordpieceTokenizer(VOCABULARY)
    assert tokenizer.vocabulary_size == len(VOCABULARY)
    assert hash(tokenizer.vocabulary) == hash(tuple(VOCABULARY))


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ([], r"missing \['\[PAD\]'"),
        (["[PAD]", "[UNK]"], "and pieces of words"),
        ("vocabulary.txt", "must be a list of strings"),
        (["[UNK]", "[PAD]"], r"first '\[PAD\]'"),
        (["[PAD]", "a"], r"missing \['\[UNK\]'\]"),
        (["[PAD]", "[UNK]", "a", "b", "a"], r"not strings \['a', 'a'\]"),
        (["[PAD]", "[UNK]", 3], r"not strings \[3\]"),
        (["[PAD]", "[UNK]", ["a"]], r"not strings \[\['a'\]\]"),
    ],
)
def test_bad_vocabularies(vocabulary, message):
    with pytest.raises(ValueError, match=message):
        WordpieceTokenizer(vocabulary)


@pytest.mark.parametrize("tokenizer", make_tokenizers())
def test_bad_arguments(tokenizer):
    for texts in ([1, 2], [["a"]], None, tf.constant([1]), "\ud800"):
        with pytest.raises(ValueError, match="`texts` must be a string"):
            tokenizer(texts)
    for ids in ([[-1]], [tokenizer.vocabulary_size]):
        with pytest.raises(ValueError, match=r"`ids` must be in \[0, "):
            tokenizer.detokenize(ids)
    for length in (0, -1, 2.0, True):
        config = {**tokenizer.get_config(), "max_length": length}
        with pytest.raises(ValueError, match="Received: max_length="):
            type(tokenizer).from_config(config)


# On the TensorFlow backend Keras itself loads it; `nox -s serving` has JAX.
needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None,
    reason="needs a backend that works without TensorFlow: JAX",
)


@needs_jax
def test_import_loads_no_tensorflow():
    code = """
import sys, keras_rfa.text
assert "tensorflow" not in sys.modules
assert "tensorflow_text" not in sys.modules
tokenizer = keras_rfa.text.WordpieceTokenizer(["[PAD]", "[UNK]", "a"])
assert "tensorflow" not in sys.modules
print(keras_rfa.text.ByteTokenizer().detokenize([98]))
"""
    assert run_python("-c", code, KERAS_BACKEND="jax").stdout == "['a']\n"


@needs_jax
@pytest.mark.parametrize("name", ["tensorflow", "tensorflow_text"])
def test_missing_packages_are_named(name):
    code = f"""
import sys
sys.modules[{name!r}] = None
from keras_rfa.text import WordpieceTokenizer
try:
    WordpieceTokenizer(["[PAD]", "[UNK]", "a"])("a")
except ImportError as error:
    print(error)
"""
    printed = run_python("-c", code, KERAS_BACKEND="jax").stdout
    assert f"`{name}` cannot be imported" in printed
    assert 'pip install "keras_rfa[text]"' in printed
