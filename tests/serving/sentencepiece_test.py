"""Pieces of sentences, against sentencepiece itself and against rules."""

import copy
import hashlib
import io
import json
import pickle
import re
import unicodedata

import keras
import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations are in the graphs)
from hypothesis import given
from hypothesis import strategies as st
from programs import run_python

from keras_rfa.text import SentencePieceTokenizer, learn_sentencepiece

CORPUS = [
    "The library reads and writes pictures.",
    "La libreria legge e scrive immagini.",
    "A small library for reading pictures, and for writing them!",
    "Una piccola libreria per leggere immagini, e per scriverle!",
    "It isn't the library's fault: 10 of 12 pictures are larger.",
    "Più immagini sono più grandi; è così.",
]
MODEL = learn_sentencepiece(CORPUS, 330)
WITHOUT_BYTES = learn_sentencepiece(CORPUS, 60, byte_fallback=False)


def normalised(text):
    """What a text is after its way to ids and back."""
    text = unicodedata.normalize("NFKC", text.replace("\u2581", " "))
    return " ".join(text.split())


# Characters that every version of Unicode normalises in the same way.
TEXTS = st.text("aeiou lbr ,!'è漢ﬁＡ½😀\n\u00a0\u2003<>/sx0", max_size=30)


@pytest.mark.parametrize("model", [MODEL, WITHOUT_BYTES])
def test_pieces_are_those_of_sentencepiece(model):
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = SentencePieceTokenizer(model)
    assert tokenizer.vocabulary_size == theirs.vocab_size()
    assert list(tokenizer.vocabulary) == [
        theirs.id_to_piece(i) for i in range(theirs.vocab_size())
    ]
    assert theirs.pad_id() == 0
    assert theirs.unk_id() == 1
    assert theirs.bos_id() == tokenizer.start_token_id == 2
    assert theirs.eos_id() == tokenizer.end_token_id == 3
    for text in [*CORPUS, "a libro", "grandly 漢 <s>"]:
        ids = theirs.encode(text)
        assert tokenizer(text).numpy().tolist() == ids
        assert tokenizer.detokenize(ids) == [theirs.decode(ids)]


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_texts_come_back(texts):
    tokenizer = SentencePieceTokenizer(MODEL, add_start=True, add_end=True)
    ids = tokenizer(texts)
    assert tokenizer.detokenize(ids) == [normalised(text) for text in texts]
    back = [text.decode() for text in tokenizer.to_text(ids).numpy()]
    assert back == tokenizer.detokenize(ids)
    for row in ids.numpy().tolist():
        inner = row[1 : row.index(3)]
        assert row[0] == 2
        assert not {0, 1, 2, 3} & set(inner)
        assert set(row[row.index(3) + 1 :]) <= {0}


@given(st.binary(max_size=20) | st.text(max_size=20))
def test_no_text_yields_a_special_id(text):
    ids = SentencePieceTokenizer(MODEL)(text).numpy().tolist()
    assert ids == [0] or min(ids) > 3
    ids = SentencePieceTokenizer(WITHOUT_BYTES)(text).numpy().tolist()
    assert ids == [0] or not {0, 2, 3} & set(ids)


@pytest.mark.parametrize("text", ["<pad>", "<s>", "</s>", "<unk>", "<0x41>"])
def test_the_spelling_of_a_special_piece_is_text(text):
    tokenizer = SentencePieceTokenizer(MODEL)
    assert tokenizer.detokenize(tokenizer(text)) == [text]
    assert min(tokenizer(text).numpy()) > 3


def test_without_bytes_other_characters_are_unknown():
    tokenizer = SentencePieceTokenizer(WITHOUT_BYTES)
    ids = tokenizer("la 漢")
    assert ids.numpy()[-1] == 1
    assert re.sub(r"\s+", " ", *tokenizer.detokenize(ids)) == "la ⁇ "
    known = [t for t in CORPUS if 1 not in tokenizer(t).numpy()]
    assert known == CORPUS


def test_shapes_and_added_ids():
    plain = SentencePieceTokenizer(MODEL)
    both = SentencePieceTokenizer(MODEL, add_start=True, add_end=True)
    end = SentencePieceTokenizer(MODEL, add_end=True)
    one = plain("la libreria").numpy().tolist()
    for batch in (["la libreria"], np.array(["la libreria"])):
        assert plain(batch).numpy().tolist() == [one]
    assert both("la libreria").numpy().tolist() == [2, *one, 3]
    ids = end(["la libreria", ""])
    assert ids.dtype == tf.int32
    assert ids.numpy().tolist() == [[*one, 3], [3] + [0] * len(one)]
    assert plain.detokenize([]) == []
    for empty, shape in [("", (1,)), ([""], (1, 1)), ([], (0, 1))]:
        assert plain(empty).shape == shape
        assert not np.any(plain(empty))
    assert both([]).shape == (0, 1)
    assert both("").numpy().tolist() == [2, 3]


def test_max_length_keeps_start_and_end():
    plain = SentencePieceTokenizer(MODEL)
    whole = plain(CORPUS[0]).numpy().tolist()
    cut = SentencePieceTokenizer(MODEL, 5, add_start=True, add_end=True)
    assert cut(CORPUS[0]).numpy().tolist() == [2, *whole[:3], 3]
    assert cut(["", CORPUS[0]]).shape == (2, 5)
    assert SentencePieceTokenizer(MODEL, 2)(CORPUS[:1]).shape == (1, 2)


def test_to_text_takes_one_text_or_a_batch_of_any_integers():
    tokenizer = SentencePieceTokenizer(MODEL)
    ids = tokenizer(CORPUS[:2]).numpy()
    for dtype in ("int32", "int64"):
        texts = tokenizer.to_text(ids.astype(dtype))
        assert [t.decode() for t in texts.numpy()] == CORPUS[:2]
        assert tokenizer.to_text(ids[0].astype(dtype)).numpy() == (
            CORPUS[0].encode()
        )
    spread = np.insert(ids[0], [0, 3, len(ids[0])], [2, 0, 3])
    assert tokenizer.to_text(spread).numpy() == CORPUS[0].encode()
    assert tokenizer.to_text(np.zeros((0, 3), int)).shape == (0,)
    assert tokenizer.to_text([[0, 0]]).numpy().tolist() == [b""]
    for shape in ((), (1, 1, 1)):
        with pytest.raises(ValueError, match=r"shape \(t,\) or \(b, t\)"):
            tokenizer.to_text(np.zeros(shape, int))
    size = tokenizer.vocabulary_size
    for wrong in (-1, size):
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be in"):
            tokenizer.to_text([[wrong]])
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be in"):
            tf.function(tokenizer.to_text)(tf.constant([[5, wrong]]))
        with pytest.raises(ValueError, match=r"`ids` must be in \[0, "):
            tokenizer.detokenize([[wrong]])


def test_graphs_give_the_eager_ids():
    tokenizer = SentencePieceTokenizer(MODEL, add_end=True)
    expected = tokenizer(CORPUS).numpy().tolist()
    fresh = SentencePieceTokenizer.from_config(tokenizer.get_config())
    dataset = tf.data.Dataset.from_tensor_slices(CORPUS)
    single = [x.tolist() for x in dataset.map(fresh).as_numpy_iterator()]
    assert single == [[i for i in row if i] for row in expected]
    (batch,) = dataset.batch(9).map(fresh).as_numpy_iterator()
    assert batch.tolist() == expected
    assert tf.function(fresh)(tf.constant(CORPUS)).numpy().tolist() == expected
    # What was made inside a graph serves outside of it.
    assert fresh(CORPUS).numpy().tolist() == expected
    texts = dataset.batch(9).map(fresh).map(fresh.to_text)
    assert [t.decode() for t in next(iter(texts)).numpy()] == CORPUS


def test_saved_model_stands_alone(tmp_path):
    tokenizer = SentencePieceTokenizer(MODEL, add_end=True)
    module = tf.Module()
    module.tokenize = tf.function(
        tokenizer, input_signature=[tf.TensorSpec([None], tf.string)]
    )
    module.to_text = tf.function(
        tokenizer.to_text,
        input_signature=[tf.TensorSpec([None, None], tf.int32)],
    )
    tf.saved_model.save(module, str(tmp_path))
    code = """
import json, sys, tensorflow as tf, tensorflow_text
model = tf.saved_model.load(sys.argv[1])
ids = model.tokenize(tf.constant(json.loads(sys.argv[2])))
print(ids.numpy().tolist())
print([text.decode() for text in model.to_text(ids).numpy()])
assert "keras_rfa" not in sys.modules
"""
    texts = [*CORPUS, ""]
    printed = run_python(
        *("-c", code, tmp_path, json.dumps(texts)), PYTHONIOENCODING="utf-8"
    ).stdout.splitlines()
    assert printed == [str(tokenizer(texts).numpy().tolist()), str(texts)]


def test_serialization_and_copies():
    tokenizer = SentencePieceTokenizer(MODEL, 7, add_start=True, add_end=True)
    expected = tokenizer(CORPUS).numpy().tolist()
    config = keras.saving.serialize_keras_object(tokenizer)
    assert config["registered_name"] == "keras_rfa>SentencePieceTokenizer"
    config = json.loads(json.dumps(config))
    for again in (
        keras.saving.deserialize_keras_object(config),
        copy.deepcopy(tokenizer),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert again.model == MODEL
        assert again.get_config() == tokenizer.get_config()
        assert again(CORPUS).numpy().tolist() == expected


def test_learning_is_deterministic_and_reads_once():
    assert learn_sentencepiece(iter(CORPUS), 330) == MODEL
    code = f"""
import hashlib
from keras_rfa.text import learn_sentencepiece
model = learn_sentencepiece({CORPUS!r}, 330)
print(hashlib.sha256(model).hexdigest())
"""
    printed = run_python("-c", code, PYTHONHASHSEED="7").stdout
    assert printed.split()[-1] == hashlib.sha256(MODEL).hexdigest()


def test_vocabulary_size_is_a_limit():
    for size in (320, 340, 100_000):
        tokenizer = SentencePieceTokenizer(learn_sentencepiece(CORPUS, size))
        assert 310 < tokenizer.vocabulary_size <= size
        assert len(set(tokenizer.vocabulary)) == tokenizer.vocabulary_size
        assert tokenizer.detokenize(tokenizer(CORPUS)) == CORPUS


def test_learning_from_strange_texts():
    strange = ["a\0b", "\u2581", "", "a\ud800", "x" * 10_000, "the good"]
    model = learn_sentencepiece(CORPUS + strange, 400)
    tokenizer = SentencePieceTokenizer(model)
    assert tokenizer.detokenize(tokenizer("a\0b x")) == ["a\0b x"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 400), "must hold words"),
        ((["", " "], 400), "must hold words"),
        (([1], 400), "`texts` must be strings"),
        (("a b", 400), "`texts` must be several strings"),
        ((CORPUS, 261), "`vocabulary_size` must be an integer of at least 262"),
        ((CORPUS, 270), r"vocabulary_size=270\. Sentencepiece says"),
        ((CORPUS, 5, False), "`vocabulary_size` must be an integer of at l"),
        ((CORPUS, 400, True, 0), "`max_texts` must be an integer"),
    ],
)
def test_bad_learning(arguments, message):
    with pytest.raises(ValueError, match=message):
        learn_sentencepiece(*arguments)


def other_ids(**options):
    """Returns a model whose special pieces have other ids."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=written,
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return written.getvalue()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("m.model", "must be the bytes of a sentencepiece model.*str"),
        (b"", r"first pieces \[\]"),
        (b"text of a file", "14 other bytes"),
        (MODEL[:-7], "other bytes"),
        (MODEL[:5000], "other bytes"),
        (other_ids(), r"first pieces \['<unk>', '<s>', '</s>'"),
        (other_ids(pad_id=3), r"ids 0 for padding, 1 unknown"),
    ],
)
def test_bad_models(model, message):
    with pytest.raises(ValueError, match=message):
        SentencePieceTokenizer(model)


def test_bad_arguments():
    tokenizer = SentencePieceTokenizer(MODEL)
    for texts in ([1, 2], [["a"]], None):
        with pytest.raises(ValueError, match="`texts` must be a string"):
            tokenizer(texts)
    for options in ({"max_length": 0}, {"max_length": 1, "add_end": True}):
        with pytest.raises(ValueError, match="`max_length` must be an"):
            SentencePieceTokenizer(MODEL, **options)


def test_a_missing_package_is_named():
    code = """
import sys
sys.modules["sentencepiece"] = None
from keras_rfa.text import learn_sentencepiece
try:
    learn_sentencepiece(["a"], 300)
except ImportError as error:
    print(error)
"""
    printed = run_python("-c", code).stdout
    assert 'pip install "keras_rfa[sentencepiece]"' in printed
