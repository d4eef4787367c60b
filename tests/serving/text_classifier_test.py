"""Texts and names of classes in, probabilities and names out."""

import keras
import numpy as np
import pytest

import keras_rfa
from keras_rfa import TextClassifier
from keras_rfa.text import ByteTokenizer, WordpieceTokenizer

NAMES = ["animal", "machine", "plant"]
WORDS = {"animal": "bcd", "machine": "klm", "plant": "xyz"}


@keras.saving.register_keras_serializable(package="text_classifier_test")
class CountTraces(keras.layers.Layer):
    """Notes each time that Python runs it: when a graph is traced."""

    traces = ()

    def call(self, inputs):
        self.traces = [*self.traces, tuple(inputs.shape)]
        return inputs

    def compute_output_shape(self, input_shape):
        return input_shape


def make_model(num_classes=3, vocabulary_size=257):
    """A model that is compiled in no time."""
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(vocabulary_size, 6, mask_zero=True)(ids)
    x = keras_rfa.layers.MaskedAveragePooling()(x)
    x = CountTraces(name="traces")(x)
    return keras.Model(ids, keras.layers.Dense(num_classes)(x))


def make_classifier(max_length=16, **options):
    return TextClassifier(
        make_model(), ByteTokenizer(max_length), NAMES, **options
    )


def make_texts(number=60):
    """Each class has letters of its own."""
    draw = np.random.default_rng(0)
    labels = [NAMES[i] for i in draw.integers(3, size=number)]
    texts = [
        "".join(draw.choice([*WORDS[name], "e"], draw.integers(3, 14)))
        for name in labels
    ]
    return texts, labels


def weights_of(classifier):
    return [
        keras.ops.convert_to_numpy(weight)
        for weight in classifier.model.trainable_weights
    ]


def softmax(logits):
    exponentials = np.exp(np.asarray(logits, "float64"))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def alone(classifier, text):
    """The logits of one text, without padding."""
    ids = np.asarray(classifier.tokenizer([text]))
    return keras.ops.convert_to_numpy(classifier.model(ids))[0]


TEXTS = ["cd", "x" * 700, "", "klm" * 30, "\x00", "a\x00", "é", "m" * 65] * 3


@pytest.mark.parametrize("max_length", [300, None])
@pytest.mark.parametrize("multi_label", [False, True])
def test_probabilities_are_those_of_each_text_alone(max_length, multi_label):
    classifier = make_classifier(max_length, multi_label=multi_label)
    found = classifier.predict(TEXTS, tokens_per_batch=512, verbose=0)
    logits = [alone(classifier, text) for text in TEXTS]
    wanted = 1 / (1 + np.exp(-np.array(logits, "float64")))
    if not multi_label:
        wanted = softmax(logits)
    assert found.dtype == "float32"
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert len({tuple(row) for row in found.round(6)}) == 8


def test_texts_are_any_iterable_of_strings(capsys):
    classifier = make_classifier()
    wanted = classifier.predict(["b", "kk"], verbose=0)
    assert capsys.readouterr().out == ""
    for texts in (("b", "kk"), np.array(["b", "kk"]), iter(["b", "kk"])):
        found = classifier.predict(texts, verbose=0)
        np.testing.assert_array_equal(found, wanted)
    assert classifier.predict([]).shape == (0, 3)
    assert classifier.predict_labels(iter([])) == []
    assert capsys.readouterr().out == ""
    classifier.predict(["b"], verbose=1)
    assert "1/1" in capsys.readouterr().out


def test_calls_of_any_lengths_compile_once_a_bucket(monkeypatch):
    classifier = make_classifier(500)
    layer = classifier.model.get_layer("traces")
    layer.traces = ()
    shapes = set()
    predict = classifier.model.predict

    def note(batches, **options):
        shapes.update(ids.shape for (ids,) in batches.as_numpy_iterator())
        return predict(batches, **options)

    monkeypatch.setattr(classifier.model, "predict", note)
    draw = np.random.default_rng(0)
    for _ in range(50):
        lengths = draw.integers(0, 600, size=draw.integers(1, 9))
        classifier.predict(["b" * n for n in lengths], verbose=0)
    assert shapes == {(64, 64), (32, 128), (16, 256), (8, 500)}
    assert 1 <= len(layer.traces) <= 4


def test_training_compiles_once_a_bucket():
    classifier = make_classifier(130)
    layer = classifier.model.get_layer("traces")
    layer.traces = ()
    for number in (7, 20, 33):
        texts = ["b" * (7 * i) for i in range(number)]
        labels = [NAMES[i % 3] for i in range(number)]
        classifier.fit(texts, labels, epochs=2, verbose=0)
    # Keras traces a model once more to build its optimizer and metrics.
    assert len(layer.traces) <= 4 + 3


def test_it_learns_one_class_a_text(capsys):
    classifier = make_classifier()
    texts, labels = make_texts(200)
    history = classifier.fit(
        texts[:150],
        labels[:150],
        validation_data=(texts[150:], labels[150:]),
        epochs=8,
        tokens_per_batch=256,
        optimizer=keras.optimizers.Adam(0.03),
    ).history
    measures = {"loss", "cross_entropy", "accuracy"}
    assert history.keys() == measures | {f"val_{name}" for name in measures}
    assert history["val_accuracy"][-1] >= 0.95
    assert history["cross_entropy"][-1] < history["cross_entropy"][0] / 2
    assert "Epoch 8/8" in capsys.readouterr().out
    found = classifier.predict_labels(texts[150:], verbose=0)
    assert np.mean(np.array(found) == labels[150:]) >= 0.95
    assert classifier.model.jit_compile


def test_it_learns_any_number_of_classes_a_text():
    draw = np.random.default_rng(0)
    labels = [{name for name in NAMES if draw.integers(2)} for _ in range(200)]
    texts = [
        "".join(f"{WORDS[name]}e" for name in names) or "eee"
        for names in labels
    ]
    classifier = make_classifier(multi_label=True)
    history = classifier.fit(
        texts,
        labels,
        epochs=30,
        tokens_per_batch=512,
        optimizer=keras.optimizers.Adam(0.1),
        verbose=0,
    ).history
    assert history["accuracy"][-1] > 0.95
    found = classifier.predict_labels(texts, verbose=0)
    right = [set(x) == y for x, y in zip(found, labels, strict=True)]
    assert np.mean(right) > 0.9
    assert classifier.predict_labels(["b"], threshold=0, verbose=0) == [NAMES]
    assert classifier.predict_labels(["b"], threshold=1.1, verbose=0) == [[]]


def test_wordpieces():
    tokenizer = WordpieceTokenizer(["[PAD]", "[UNK]", "a", "b"], max_length=4)
    classifier = TextClassifier(make_model(2, 4), tokenizer, ["a", "b"])
    classifier.fit(
        ["a b a", "b"] * 20,
        ["a", "b"] * 20,
        epochs=20,
        optimizer=keras.optimizers.Adam(0.1),
        verbose=0,
    )
    assert classifier.predict_labels(["a a b b b", "B B"]) == ["a", "b"]
