"""How a `TextClassifier` trains."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from text_classifier_test import (
    NAMES,
    make_classifier,
    make_model,
    make_texts,
    weights_of,
)

from keras_rfa import TextClassifier
from keras_rfa.text import ByteTokenizer


def test_rows_of_padding_count_nothing():
    """Without a step, the metrics are means over the texts alone."""
    texts, labels = make_texts(13)
    for multi_label in (False, True):
        classifier = make_classifier(multi_label=multi_label)
        optimizer = keras.optimizers.SGD(0.0)
        names = [[name] for name in labels] if multi_label else labels
        history = classifier.fit(
            texts, names, optimizer=optimizer, tokens_per_batch=96, verbose=0
        ).history
        p = classifier.predict(texts, verbose=0).astype("float64")
        y = np.eye(3)[[NAMES.index(name) for name in labels]]
        entropy = -np.log((p * y).sum(axis=-1)).mean()
        accuracy = (p.argmax(axis=-1) == y.argmax(axis=-1)).mean()
        if multi_label:
            entropy = -np.log(np.where(y == 1, p, 1 - p)).mean()
            accuracy = ((p > 0.5) == (y == 1)).mean()
        assert history["cross_entropy"][0] == pytest.approx(entropy, rel=1e-5)
        assert history["accuracy"][0] == pytest.approx(accuracy, rel=1e-5)
        # Three batches of six rows, five of padding.
        loss = entropy * 13 / 18
        assert history["loss"][0] == pytest.approx(loss, rel=1e-5)


def pairs(texts, labels, multi_label=False):
    """A dataset as users write it."""
    if multi_label:
        labels = tf.ragged.constant(labels, tf.string)
    return tf.data.Dataset.from_tensor_slices((texts, labels))


@pytest.mark.parametrize("multi_label", [False, True])
def test_a_dataset_trains_as_lists_do(multi_label):
    texts, labels = make_texts()
    if multi_label:
        labels = [[name, "plant"][: i % 3] for i, name in enumerate(labels)]
    results = []
    for form in ("lists", "dataset"):
        keras.utils.set_random_seed(0)
        classifier = make_classifier(multi_label=multi_label)
        data = {"texts": texts, "labels": labels}
        validation = texts[:9], labels[:9]
        if form == "dataset":
            data = {"texts": pairs(texts, labels, multi_label)}
            validation = pairs(*validation, multi_label)
        history = classifier.fit(
            **data,
            validation_data=validation,
            epochs=2,
            tokens_per_batch=128,
            class_weight="balanced",
            seed=5,
            verbose=0,
        ).history
        results.append((history, weights_of(classifier)))
    (history, weights), (other_history, other_weights) = results
    for name, values in history.items():
        np.testing.assert_allclose(values, other_history[name], rtol=1e-5)
    for weight, other in zip(weights, other_weights, strict=True):
        np.testing.assert_allclose(weight, other, atol=1e-6)


def test_the_seed_gives_the_order():
    texts, labels = make_texts()

    def train(seed):
        keras.utils.set_random_seed(0)
        classifier = make_classifier()
        classifier.fit(texts, labels, tokens_per_batch=64, seed=seed, verbose=0)
        return weights_of(classifier)[0]

    first = train(1)
    np.testing.assert_array_equal(train(1), first)
    assert np.abs(train(2) - first).max() > 1e-6


@pytest.mark.parametrize(
    ("multi_label", "class_weight"),
    [
        (False, {"animal": 3.0, "plant": 0.25}),
        (False, "balanced"),
        (True, {"animal": 3.0, "plant": 0.25}),
        (True, "balanced"),
    ],
)
def test_class_weights_weigh_the_gradient(multi_label, class_weight):
    """The step of the last bias against its own formula."""
    texts = ["bc", "k", "x", "bb", "xx", "l", "b", "d"]
    labels = [[NAMES[i]] for i in (0, 1, 2, 0, 2, 1, 0, 0)]
    if multi_label:
        labels[0], labels[1], labels[2] = [], ["animal", "plant"], NAMES
    y = np.array([[name in x for name in NAMES] for x in labels], "float64")
    counts = y.sum(axis=0)
    weights = [3.0, 1.0, 0.25]
    if class_weight == "balanced":
        weights = counts.sum() / (3 * counts)
    each = np.array(
        [np.mean(np.array(weights)[row == 1]) if row.any() else 1 for row in y]
    )
    classifier = make_classifier(multi_label=multi_label)
    p = classifier.predict(texts, verbose=0)
    before = weights_of(classifier)[-1]
    classifier.fit(
        texts,
        labels if multi_label else [name for (name,) in labels],
        class_weight=class_weight,
        tokens_per_batch=16 * 10,  # two rows of padding
        optimizer=keras.optimizers.SGD(1.0),
        verbose=0,
    )
    step = before - weights_of(classifier)[-1]
    wanted = (each[:, None] * (p - y)).sum(axis=0) / 10
    wanted = wanted / 3 if multi_label else wanted
    assert np.abs(wanted).max() > 1e-3
    np.testing.assert_allclose(step, wanted, atol=1e-6)


def test_a_compiled_model_is_trained_as_it_was_compiled():
    texts, labels = make_texts(6)
    classifier = make_classifier()
    classifier.fit(texts, labels, verbose=0)
    optimizer = classifier.model.optimizer
    assert isinstance(optimizer, keras.optimizers.AdamW)
    classifier.fit(texts, labels, epochs=2, verbose=0)
    assert classifier.model.optimizer is optimizer
    assert int(optimizer.iterations) == 3
    classifier.fit(texts, labels, optimizer="sgd", verbose=0)
    assert isinstance(classifier.model.optimizer, keras.optimizers.SGD)

    mine = make_model()
    mine.compile(
        keras.optimizers.SGD(0.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[keras.metrics.SparseTopKCategoricalAccuracy(3)],
    )
    optimizer = mine.optimizer
    classifier = TextClassifier(mine, ByteTokenizer(16), NAMES)
    history = classifier.fit(texts, labels, verbose=0).history
    assert mine.optimizer is optimizer
    assert history["sparse_top_k_categorical_accuracy"] == [1.0]


def test_callbacks_are_called():
    texts, labels = make_texts(6)
    epochs = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: epochs.append(epoch)
    )
    classifier = make_classifier()
    classifier.fit(texts, labels, epochs=3, callbacks=[note], verbose=0)
    assert epochs == [0, 1, 2]


def test_schedules_know_the_number_of_steps():
    texts, labels = make_texts(7)
    steps = []

    def make_optimizer(number):
        steps.append(number)
        return keras.optimizers.SGD(0.1)

    classifier = make_classifier()
    options = {"tokens_per_batch": 48, "verbose": 0}
    history = classifier.fit(
        texts,
        labels,
        epochs=2,
        optimizer=make_optimizer,
        metrics=[keras.metrics.SparseTopKCategoricalAccuracy(3, name="top")],
        **options,
    ).history
    # Batches of three texts.
    assert steps == [6]
    assert int(classifier.model.optimizer.iterations) == 6
    assert history["top"] == [1.0, 1.0]
    with pytest.raises(ValueError, match=r"the class SGD; call it"):
        classifier.fit(texts, labels, optimizer=keras.optimizers.SGD)


def interrupt_at(number):
    """A callback that ends a training with one of its batches."""
    batches = itertools.count(1)

    def end(batch, logs):
        if next(batches) == number:
            raise KeyboardInterrupt

    return keras.callbacks.LambdaCallback(on_train_batch_end=end)


def test_an_interrupted_training_resumes_exactly(tmp_path):
    texts, labels = make_texts(18)
    backup = tmp_path / "training.backup"
    options = {"epochs": 3, "tokens_per_batch": 48, "seed": 3, "verbose": 0}

    def train(number, **more):
        keras.utils.set_random_seed(0)
        classifier = make_classifier()
        callbacks = [interrupt_at(number)]
        history = classifier.fit(
            texts, labels, callbacks=callbacks, **options, **more
        )
        return history.history, weights_of(classifier)

    wanted_history, wanted = train(0)
    with pytest.raises(KeyboardInterrupt):
        train(14, backup=backup)  # in the third epoch of six steps
    assert backup.is_file()
    # It begins with the third epoch, and never comes to a batch 7.
    history, found = train(7, backup=backup)
    assert history == wanted_history
    for weight, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(weight, other)
    assert list(tmp_path.iterdir()) == []
