"""The program `examples/classify_long_documents.py`, run as a user runs it."""

import functools
import importlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations are in the SavedModel)
from documents_test import write_documents
from programs import EXAMPLES, run_python

from keras_rfa import TextClassifier
from keras_rfa.text import WordpieceTokenizer

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")
PROGRAM = EXAMPLES / "classify_long_documents.py"
MY_ATTENTION = """
import keras
import keras_rfa

def build(num_heads, key_dim, name):
    return keras_rfa.layers.RandomFeatureAttention(
        num_heads, key_dim, num_features=8, feature_map="arccos", name=name
    )
"""


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
        "classifier.json",
        "vocabulary.txt",
        "exported",
        "results.json",
        "training.png",
        "accuracy_by_length.png",
        "confusion_matrix.png",
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
    assert results["bag_of_words_read_test_accuracy"] >= 0.75
    assert "model   bag of words   of the same tokens" in output
    *rows, everything = results["accuracy_by_length"]
    assert everything["documents"] == 12
    assert sum(row["documents"] for row in rows) in (0, 12)
    right = sum(row["documents"] * row["model"] for row in rows or [everything])
    assert right == pytest.approx(12 * results["test_accuracy"])
    matrix = np.array(results["confusion_matrix"])
    assert matrix.sum(axis=1).tolist() == [4, 4, 4]
    assert np.trace(matrix) == round(12 * results["test_accuracy"])
    hits = np.diag(matrix)
    f1 = 2 * hits / (matrix.sum(axis=0) + matrix.sum(axis=1))
    assert results["macro_f1"] == pytest.approx(f1.mean())
    assert f"macro-averaged F1 {f1.mean():.3f}" in output
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
    classifier = TextClassifier.load(folder / "outputs/first")
    np.testing.assert_allclose(
        classifier.predict(texts, verbose=0),
        answers["probabilities"].numpy(),
        atol=1e-5,
    )
    logits = model.predict_on_batch(tokenizer(texts).numpy())
    np.testing.assert_allclose(
        answers["probabilities"].numpy(),
        np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True),
        atol=1e-5,
    )
    assert output.count("with probability") == 2


@pytest.fixture
def main(run_example):
    return functools.partial(run_example, "classify_long_documents")


@pytest.mark.parametrize("overwrite", [[], ["--overwrite"]])
def test_what_is_not_an_earlier_run_stays(tmp_path, main, overwrite):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("long")
    with pytest.raises(ValueError, match=r"thesis.*--output-dir"):
        main("--output-dir", "thesis", *overwrite)
    assert [path.name for path in tmp_path.rglob("*.txt")] == ["chapter.txt"]


def test_an_earlier_run_is_replaced_only_when_asked_to(tmp_path, main):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text("{}")
    with pytest.raises(ValueError, match="--overwrite"):
        main("--output-dir", "run")
    # It is still there when the new run fails.
    with pytest.raises(ValueError, match="--data-dir"):
        main(
            *("--output-dir", "run", "--overwrite", "--data-dir", "missing"),
        )
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
    assert (tmp_path / "run" / "results.json").read_text() == "{}"


def test_an_interrupted_run_leaves_nothing(tmp_path, main, monkeypatch):
    program = importlib.import_module("classify_long_documents")
    write_documents(tmp_path / "documents", 3)

    def interrupt(*_):
        assert (tmp_path / "runs").is_dir()
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "fit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        main("--data-dir", "documents", "--vocabulary-size", "80")
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
        (["--csv", "missing"], "`--csv` must be a file.*'missing'"),
        (["--attention", "missing_module:build"], "`--attention` is not"),
        (["--attention", "own_attention:missing"], "`--attention` is not"),
        (["--attention", "rfq"], "`attention` must be one of.*'rfq'"),
        (["--width", 9, "--heads", 2], "`hidden_dim` must be a multiple"),
        (["--attention", "own_attention:without_masks"], "query_mask"),
        (["--attention", "own_attention:Unregistered"], "Unregistered"),
    ],
)
def test_wrong_options(tmp_path, main, arguments, message):
    (tmp_path / "own_attention.py").write_text(OWN_ATTENTION)
    with pytest.raises((TypeError, ValueError), match=message):
        main(*arguments)
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
        ("--fold", "10"),
    ],
)
def test_wrong_numbers(main, option, number, capsys):
    with pytest.raises(SystemExit):
        main(option, number)
    assert f"{option}: invalid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--width", "9"], "`hidden_dim` must be a multiple"),
        (["--fold", "1"], "--fold needs --data-dir or --csv"),
        (["--output-dir", "kept"], "'kept' exists and is not the output"),
    ],
)
def test_what_a_user_can_mend_is_one_line(tmp_path, arguments, message):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    with pytest.raises(AssertionError) as error:
        run_python(PROGRAM, *arguments, directory=tmp_path)
    (line,) = [
        line for line in str(error.value).splitlines() if message in line
    ]
    assert "Traceback" not in str(error.value)
    assert not line.startswith(("ValueError", "Error"))


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv.pop(1))
import classify_long_documents, progress

begin = progress.Progress.on_epoch_begin

def killed(self, epoch, logs=None):
    if epoch == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    begin(self, epoch, logs)

progress.Progress.on_epoch_begin = killed
classify_long_documents.main()
"""


def test_a_killed_run_goes_on(tmp_path):
    rows = ["topic,number,body"]
    for i in range(60):
        name = ("sport", "art, old", "law")[i % 3]
        rows.append(f'"{name}",{i},"{name[0] * (i % 9 + 9)}\n{i}"')
    (tmp_path / "table.csv").write_text("\n".join(rows))
    options = {
        "--csv": "table.csv",
        "--text-column": "body",
        "--label-column": "topic",
        "--output-dir": "outputs/",
        "--tokenizer": "bytes",
        "--attention": "linear",
        "--window": 16,
        "--tokens-per-batch": 1024,
        "--epochs": 3,
        "--width": 8,
    }
    words = ["--resume", *(str(x) for pair in options.items() for x in pair)]
    with pytest.raises(AssertionError):
        run_python("-c", KILLED, PROGRAM.parent, *words, directory=tmp_path)
    assert (tmp_path / "outputs.backup").is_file()
    assert not (tmp_path / "outputs").exists()
    printed = run_python(PROGRAM, *words, directory=tmp_path).stdout
    assert "epoch 3 of 3" in printed
    assert "epoch 2 of 3" not in printed
    assert not (tmp_path / "outputs.backup").exists()
    results = json.loads((tmp_path / "outputs/results.json").read_text())
    assert results["class_names"] == ["art, old", "law", "sport"]
    assert [point["step"] for point in results["validation"]] == [3, 6, 9]
    assert [point["step"] for point in results["train"]] == [*range(1, 10)]
    assert results["train_seconds"] > 0
