"""What a `TextClassifier` refuses, writes and reads."""

import importlib.util
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from programs import run_python

import keras_rfa
from keras_rfa import TextClassifier
from keras_rfa.text import ByteTokenizer

NAMES = ["animal", "plant"]
TEXTS = ["a cow", "a rose " * 9, "", "\N{SNOWMAN} and \x00 bytes"]


def make_model(num_classes=2, vocabulary_size=257):
    return keras_rfa.models.document_classifier(
        vocabulary_size,
        num_classes,
        num_layers=1,
        hidden_dim=4,
        num_heads=1,
        intermediate_dim=4,
        attention_options={"num_features": 4},
    )


def make_classifier(**options):
    return TextClassifier(make_model(), ByteTokenizer(32), NAMES, **options)


def encoder():
    sizes = {"num_layers": 1, "hidden_dim": 4, "num_heads": 1}
    return keras_rfa.models.document_encoder(257, intermediate_dim=4, **sizes)


@pytest.mark.parametrize(
    ("model", "names", "message"),
    [
        (make_model, ["a"], r"2 strings, one for each class.*\['a'\]"),
        (make_model, "ab", "2 strings"),
        (make_model, {"a", "b"}, "2 strings"),
        (make_model, [0, 1], "2 strings"),
        (make_model, ["a", "a"], r"differ.*\['a', 'a'\]"),
        (encoder, ["a", "b"], "`logits` must have shape"),
        (lambda: make_model(2, 100), ["a", "b"], "257 ids.* only 100"),
        (lambda: "model.keras", ["a", "b"], "Functional.*'model.keras'"),
        (lambda: keras.Sequential(), ["a", "b"], "that is built"),
    ],
)
def test_model_tokenizer_and_names_must_fit(model, names, message):
    with pytest.raises(ValueError, match=message):
        TextClassifier(model(), ByteTokenizer(), names)


def dataset(texts, labels):
    return tf.data.Dataset.from_tensor_slices((texts, labels))


ONE, TWO = (["x", "y"], ["animal", "plant"]), ["x", "y"]
WRONG = {
    "one text": (("x", ["animal"]), {}, "list of strings.*'x'"),
    "no texts": ((3, ["animal"]), {}, "list of strings.*3"),
    "text": ((["x", None], ["animal"] * 2), {}, "None as text 1"),
    "surrogate": ((["\ud800"], ["animal"]), {}, "UTF-8.*as text 0"),
    "empty": (([], []), {}, "must hold texts"),
    "no labels": ((TWO,), {}, "list of labels.*None"),
    "one label": ((TWO, "animal"), {}, "list of labels.*'animal'"),
    "count": ((TWO, ["animal"]), {}, "Received: 1 labels, 2 texts"),
    "name": ((TWO, ["animal", "fish"]), {}, "'fish' with text 1 of `texts`"),
    "number": ((TWO, [0, 1]), {}, "name of one class.*Received: 0"),
    "several": ((TWO, [["animal"], []]), {}, "multi_label=True.*'animal'"),
    "none": ((dataset([], tf.constant([], "string")),), {}, "tf.string|hold"),
    "dataset": ((dataset(TWO, [0, 1]),), {}, "must hold `\\(text, label\\)`"),
    "batched": ((dataset(*ONE).batch(2),), {}, "not batched"),
    "endless": ((dataset(*ONE).repeat(),), {}, "must be finite"),
    "twice": ((dataset(*ONE), ["a"]), {}, "holds the labels too"),
    "dataset name": (
        (dataset(TWO, ["animal", "fish"]),),
        {},
        "'fish' in `texts`",
    ),
    "unseen": (
        (["x"], ["plant"]),
        {"validation_data": ONE},
        r"no text to train on has. Received: \['animal'\]",
    ),
    "validation": (
        ONE,
        {"validation_data": (TWO, ["fish", "plant"])},
        "'fish' with text 0 of `validation_data`",
    ),
    "triple": (ONE, {"validation_data": (1, 2, 3)}, "Received: 3 values"),
    "epochs": (ONE, {"epochs": 0}, "epochs=0"),
    "tokens": (ONE, {"tokens_per_batch": 0}, "tokens_per_batch=0"),
    "weights": (ONE, {"class_weight": "even"}, "'balanced'.*'even'"),
    "weight of": (ONE, {"class_weight": {"fish": 1}}, r"\['fish'\]"),
    "weight": (ONE, {"class_weight": {"plant": -1}}, "class_weight.*=-1"),
}


@pytest.mark.parametrize(
    ("data", "options", "message"), WRONG.values(), ids=WRONG
)
def test_everything_is_checked_before_training(data, options, message):
    classifier = make_classifier()
    with pytest.raises(ValueError, match=message):
        classifier.fit(*data, **options)
    assert not classifier.model.compiled


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["animal", "plant"], r"list of names, \[\] for no.*'animal' with"),
        ([["animal"], 3], "list of names.*3 with text 1"),
        ([["animal"], ["plant", "fish"]], "'fish' with text 1"),
        ([["animal"], [["plant"]]], r"\['plant'\] with text 1"),
    ],
)
def test_labels_of_several_classes(labels, message):
    classifier = make_classifier(multi_label=True)
    with pytest.raises(ValueError, match=message):
        classifier.fit(TWO, labels)
    with pytest.raises(ValueError, match="strings \\(k,\\)"):
        classifier.fit(dataset(*ONE))
    assert not classifier.model.compiled


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x",), "put a single one into a list"),
        ((b"x",), "put a single one into a list"),
        ((["x", 3],), "3 as text 1"),
    ],
)
def test_only_strings_are_asked_for(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_classifier().predict(*arguments)
    with pytest.raises(ValueError, match="threshold=nan"):
        make_classifier().predict_labels(["x"], threshold=float("nan"))


LOAD = """
import json, sys, numpy, keras_rfa
classifier = keras_rfa.TextClassifier.load("saved")
assert not classifier.model.compiled
texts = json.loads(sys.argv[1])
numpy.save("found.npy", classifier.predict(texts, verbose=0))
print("LABELS", json.dumps(classifier.predict_labels(texts, verbose=0)))
"""


def test_a_file_answers_alike_on_every_backend(tmp_path):
    classifier = make_classifier()
    classifier.fit(TEXTS, ["animal", "plant"] * 2, verbose=0)
    classifier.save(tmp_path / "saved")
    assert {path.name for path in tmp_path.rglob("*.*")} == {
        "model.keras",
        "classifier.json",
    }
    wanted = classifier.predict(TEXTS, verbose=0)
    names = classifier.predict_labels(TEXTS, verbose=0)
    for backend in ("tensorflow", "jax", "torch"):
        if importlib.util.find_spec(backend) is None:
            continue
        printed = run_python(
            "-c",
            LOAD,
            json.dumps(TEXTS),
            directory=tmp_path,
            KERAS_BACKEND=backend,
        ).stdout
        found = np.load(tmp_path / "found.npy")
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        assert f"LABELS {json.dumps(names)}" in printed
    loaded = TextClassifier.load(tmp_path / "saved")
    loaded.fit(*ONE, verbose=0)
    weights = (x.model.get_weights() for x in (loaded, classifier))
    changes = [np.abs(x - y).max() for x, y in zip(*weights, strict=True)]
    assert max(changes) > 1e-4


def test_the_arguments_come_back(tmp_path):
    classifier = make_classifier(multi_label=True)
    classifier.save(tmp_path / "saved")
    loaded = TextClassifier.load(tmp_path / "saved")
    assert loaded.multi_label is True
    assert loaded.class_names == NAMES
    assert loaded.tokenizer.get_config() == {"max_length": 32}


def test_nothing_is_half_written(tmp_path, monkeypatch):
    classifier = make_classifier()
    path = tmp_path / "saved"
    classifier.save(path)
    before = (path / "classifier.json").read_text()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        classifier.save(path)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(json, "dump", interrupt)
        for target in (path, tmp_path / "new"):
            with pytest.raises(KeyboardInterrupt):
                classifier.save(target, overwrite=True)
    assert [x.name for x in tmp_path.iterdir()] == ["saved"]
    assert (path / "classifier.json").read_text() == before
    other = TextClassifier(make_model(), ByteTokenizer(8), NAMES)
    other.save(path, overwrite=True)
    assert TextClassifier.load(path).tokenizer.max_length == 8
    other.tokenizer = lambda texts: texts
    with pytest.raises(ValueError, match=r"cannot be saved.*get_config"):
        other.save(tmp_path / "new")
    assert [x.name for x in tmp_path.iterdir()] == ["saved"]


def test_what_is_no_saved_classifier_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must be a folder that.*missing"):
        TextClassifier.load(tmp_path / "missing")
    make_classifier().save(tmp_path / "saved")
    file = tmp_path / "saved" / "classifier.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"format": 9, "keras_rfa": "7.7"}))
    with pytest.raises(
        ValueError, match=r"format 1.*9. Load it with keras_rfa 7\.7"
    ):
        TextClassifier.load(tmp_path / "saved")
    for text in ("", "[]", "{", "\udcff"):
        file.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(ValueError, match="is damaged"):
            TextClassifier.load(tmp_path / "saved")
    (tmp_path / "saved" / "model.keras").unlink()
    with pytest.raises(ValueError, match="must be a folder that"):
        TextClassifier.load(tmp_path / "saved")


@pytest.mark.parametrize("multi_label", [False, True])
def test_the_export_answers_alike(tmp_path, multi_label):
    classifier = make_classifier(multi_label=multi_label)
    classifier.export(tmp_path / "exported")
    served = tf.saved_model.load(str(tmp_path / "exported"))
    answers = served.signatures["serving_default"](text=tf.constant(TEXTS))
    np.testing.assert_allclose(
        answers["probabilities"].numpy(),
        classifier.predict(TEXTS, verbose=0),
        atol=1e-5,
    )
    with pytest.raises(FileExistsError, match="overwrite=True"):
        classifier.export(tmp_path / "exported")
