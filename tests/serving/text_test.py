"""Tokenizers, the vocabulary learner and length buckets."""

import collections
import copy
import importlib.util
import os
import pickle
import random
import string
import subprocess
import sys
import unicodedata

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations are in the graphs)
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_rfa.text import (
    ByteTokenizer,
    WordpieceTokenizer,
    bucket_batches,
    learn_vocabulary,
)

VOCABULARY = [
    *("[PAD]", "[UNK]", "a", "b", "c", "ab", "abc", "film", "un", "!", "漢"),
    *("##a", "##b", "##ab", "##s", "##bc", "##ing", "é", "##é", "'"),
]
CORPUS = [
    "The film was good, and the filming better!",
    "It isn't the film's fault: 10 out of 10 films are worse.",
    "GOOD films, bad films; é à ü.",
    "unfilmable? un-filmed? the the the",
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


def run_python(code, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@given(st.lists(st.binary(max_size=20) | st.text(max_size=20), max_size=5))
def test_bytes_match_python(texts):
    raw = [t.encode() if isinstance(t, str) else t for t in texts]
    ids = ByteTokenizer()(texts)
    assert ids.dtype == tf.int32
    assert ids.numpy().tolist() == pad([[b + 1 for b in r] for r in raw])
    decoded = [r.decode("utf-8", errors="replace") for r in raw]
    assert ByteTokenizer().detokenize(ids) == decoded


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
    result = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True
    )
    assert "AutoGraph" not in result.stderr


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
    printed = run_python(code, tmp_path).splitlines()
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
    for texts in ([1, 2], [["a"]], None, tf.constant([1])):
        with pytest.raises(ValueError, match="`texts` must be a string"):
            tokenizer(texts)
    for ids in ([[-1]], [tokenizer.vocabulary_size]):
        with pytest.raises(ValueError, match=r"`ids` must be in \[0, "):
            tokenizer.detokenize(ids)
    for length in (0, -1, 2.0, True):
        config = {**tokenizer.get_config(), "max_length": length}
        with pytest.raises(ValueError, match="Received: max_length="):
            type(tokenizer).from_config(config)


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
    printed = run_python(code, PYTHONHASHSEED="7", PYTHONIOENCODING="utf-8")
    assert printed.splitlines()[-1] == str(vocabulary)


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
        ((CORPUS, 5), "`vocabulary_size` must be an int >= 6"),
        ((CORPUS, "9"), "`vocabulary_size` must be an int"),
        ((CORPUS, 99, True, ["[UNK]"]), "`reserved_tokens` must be different"),
    ],
)
def test_bad_learning(arguments, message):
    with pytest.raises(ValueError, match=message):
        learn_vocabulary(*arguments)


def make_documents(lengths):
    """Documents whose tokens are all different, and their numbers."""
    start = np.cumsum([1, *lengths])
    rows = [np.arange(a, a + n) for a, n in zip(start, lengths, strict=False)]

    def generate():
        yield from ((row, i) for i, row in enumerate(rows))

    spec = (tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32))
    return rows, tf.data.Dataset.from_generator(generate, output_signature=spec)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 14), max_size=30),
    st.sampled_from([[12], [3, 12], [1, 4, 5, 12]]),
    st.sampled_from([1, 7, 24]),
    st.sampled_from([None, 5]),
    st.booleans(),
)
def test_buckets_lose_nothing(lengths, boundaries, tokens, shuffle, drop):
    rows, dataset = make_documents(lengths)
    batches = list(
        bucket_batches(
            dataset, boundaries, tokens, shuffle, 1, drop
        ).as_numpy_iterator()
    )
    shapes = {(max(1, tokens // n), n) for n in boundaries}
    seen = collections.defaultdict(list)
    for ids, label, weight in batches:
        assert ids.shape in shapes
        assert label.shape == weight.shape == ids.shape[:1]
        assert set(weight.tolist()) <= {0.0, 1.0}
        assert weight.any()
        for row, i, w in zip(ids, label, weight, strict=True):
            if w == 0:
                assert not row.any()
                assert i == 0
                continue
            document = rows[i][: boundaries[-1]]
            bound = next(n for n in boundaries if n >= len(document))
            assert ids.shape[1] == bound
            assert row[: len(document)].tolist() == document.tolist()
            assert not row[len(document) :].any()
            seen[bound].append(i)
    counts = collections.Counter(
        next(n for n in boundaries if n >= min(k, boundaries[-1]))
        for k in lengths
    )
    for bound, total in counts.items():
        size = max(1, tokens // bound)
        kept = total // size * size if drop else total
        assert len(set(seen[bound])) == len(seen[bound]) == kept
        if shuffle is None:
            assert seen[bound] == sorted(seen[bound])


def test_buckets_without_labels():
    _, dataset = make_documents([2, 3, 3, 1])
    batches = bucket_batches(dataset.map(lambda ids, _: ids), [2, 3], 6)
    ids = [x.tolist() for (x,) in batches.as_numpy_iterator()]
    assert ids == [
        [[3, 4, 5], [6, 7, 8]],
        [[1, 2], [9, 0], [0, 0]],
    ]


def test_shuffle_differs_between_epochs_and_obeys_the_seed():
    _, dataset = make_documents([1] * 50)

    def orders(seed):
        batches = bucket_batches(dataset, [1], 50, 50, seed)
        return [next(iter(batches))[1].numpy().tolist() for _ in range(2)]

    first, second = orders(3)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(50))
    assert orders(3)[0] == first
    assert orders(4)[0] != first


def test_buckets_take_vector_labels_and_rows_of_one_length():
    ids, labels = np.ones((5, 4), "int64"), np.eye(5, 3, dtype="float32")
    dataset = tf.data.Dataset.from_tensor_slices((ids, labels))
    batches = list(bucket_batches(dataset, [2, 6], 12).as_numpy_iterator())
    assert [x.shape for x, _, _ in batches] == [(2, 6)] * 3
    assert batches[2][1].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert batches[2][2].tolist() == [1, 0]
    assert batches[2][0].tolist() == [[1, 1, 1, 1, 0, 0], [0] * 6]


def test_fit_and_evaluate_with_buckets():
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 12, 61)
    _, dataset = make_documents(lengths)
    dataset = dataset.map(lambda ids, i: (ids % 2 + 1, i % 2))
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(3, 4)(inputs)
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    model.compile(
        "sgd",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )
    batches = bucket_batches(dataset, [4, 8, 12], 32, 64, 0)
    history = model.fit(batches, epochs=2, verbose=0).history
    assert np.all(np.isfinite(history["loss"]))
    hits = [
        np.argmax(model(ids)[i], -1) == label[i]
        for ids, label, weight in batches.as_numpy_iterator()
        for i in np.flatnonzero(weight)
    ]
    assert len(hits) == 61
    results = model.evaluate(batches, verbose=0, return_dict=True)
    assert results["accuracy"] == pytest.approx(np.mean(hits))
    # As documented: the mean loss counts filler rows, as 0.
    losses, rows = 0.0, 0
    for ids, label, weight in batches.as_numpy_iterator():
        logits = keras.ops.convert_to_numpy(model(ids)).astype("float64")
        total = np.log(np.exp(logits).sum(-1))
        losses += (
            (total - logits[np.arange(len(label)), label]) * weight
        ).sum()
        rows += len(label)
    assert rows > 61
    assert results["loss"] == pytest.approx(losses / rows, rel=1e-4)


def test_a_boundary_is_traced_once():
    _, dataset = make_documents([2, 3, 2, 5, 1, 4, 2, 2, 2])
    traces = []

    @tf.function
    def count(ids):
        traces.append(ids.shape)
        return ids

    for ids, *_ in bucket_batches(dataset, [2, 5], 10):
        count(ids)
    assert sorted(map(tuple, traces)) == [(2, 5), (5, 2)]


@pytest.mark.parametrize(
    ("boundaries", "tokens", "message"),
    [
        ([], 8, r"len\(boundaries\)"),
        ([0, 4], 8, "boundaries=0"),
        ([4, 4], 8, "must be an int >= 5"),
        ([4, 2], 8, "boundaries=2"),
        ([2.5], 8, "boundaries=2.5"),
        ([4], 0, "tokens_per_batch=0"),
    ],
)
def test_bad_buckets(boundaries, tokens, message):
    _, dataset = make_documents([1, 2])
    with pytest.raises(ValueError, match=message):
        bucket_batches(dataset, boundaries, tokens)


def test_batched_datasets_are_refused():
    _, dataset = make_documents([2, 2])
    with pytest.raises(ValueError, match="not batched"):
        bucket_batches(dataset.batch(2), [2], 2)
    with pytest.raises(ValueError, match=r"`\(ids, label\)`"):
        bucket_batches(dataset.map(lambda x, y: (x, y, y)), [2], 2)
    with pytest.raises(ValueError, match=r"`\(ids, label\)`"):
        bucket_batches(dataset.map(lambda x, y: {"ids": x}), [2], 2)


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
    assert run_python(code, KERAS_BACKEND="jax") == "['a']\n"


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
    printed = run_python(code, KERAS_BACKEND="jax")
    assert f"`{name}` cannot be imported" in printed
    assert 'pip install "keras_rfa[text]"' in printed
