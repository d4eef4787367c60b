import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import ops

import keras_rfa
from keras_rfa.layers import MaskedAveragePooling
from keras_rfa.models import document_classifier
from keras_rfa.models.attention import ATTENTIONS
from keras_rfa.models.windowed_model import WindowedModel
from keras_rfa.testing import (
    as_numpy,
    assert_close,
    assert_finite,
    compiled,
    differentiated,
    operations,
    peak_memory,
)

XLA = keras.backend.backend() != "torch"
WINDOWED = sorted(set(ATTENTIONS) - {"softmax"})
IDS = np.random.default_rng(0).integers(1, 20, size=(4, 13), dtype="int32")
IDS[1, 7:] = 0  # ends within the second of three windows
IDS[2, :6] = IDS[2, 9] = 0
IDS[3] = 0  # a document without a token


def classifier(window=None, **arguments):
    sizes = {
        "num_layers": 2,
        "hidden_dim": 8,
        "num_heads": 2,
        "intermediate_dim": 16,
        "dropout": 0.0,
        "attention_options": {"num_features": 8, "seed": 0},
    }
    sizes["causal"] = True
    return document_classifier(20, 3, window=window, **{**sizes, **arguments})


def pair(tmp_path, window=5, **arguments):
    """A model that reads at once, and one of the same weights with windows."""
    at_once, windowed = classifier(**arguments), classifier(window, **arguments)
    for weight in at_once.trainable_weights:
        weight.assign_add(keras.random.normal(weight.shape, stddev=0.3))
    path = tmp_path / "model.weights.h5"
    at_once.save_weights(path)
    windowed.load_weights(path)
    return at_once, windowed


def logits(*models, ids=IDS, **arguments):
    return as_numpy([model(ids, **arguments) for model in models])


@pytest.mark.parametrize("attention", WINDOWED)
def test_windows_change_no_output(attention, tmp_path):
    at_once, windowed = pair(tmp_path, attention=attention)
    for training in (False, True, True):  # other matrices are drawn each time
        actual, expected = logits(windowed, at_once, training=training)
        assert_close("logits", actual, expected, 1e-5)
        assert np.abs(expected[0] - expected[1]).max() > 1e-2


@pytest.mark.parametrize("convolution", [2, 4, 9])
def test_what_is_near_counts_across_windows(convolution, tmp_path):
    models = pair(tmp_path, convolution=convolution)
    for training in (False, True):
        assert_close("logits", *logits(*models, training=training), 1e-5)


def test_a_copy_reads_windows_too():
    model = classifier(5)
    copy = type(model).from_config(model.get_config())
    assert copy.window == 5
    copy.set_weights(model.get_weights())
    assert_close("logits", *logits(copy, model), 1e-6)
    with pytest.raises(ValueError, match=r"clone_model.*does not hand it on"):
        keras.models.clone_model(model)


@pytest.mark.parametrize("steps", [1, 5, 6])
def test_short_documents(steps, tmp_path):
    at_once, windowed = pair(tmp_path)
    ids = IDS[:, :steps]
    assert_close("logits", *logits(windowed, at_once, ids=ids), 1e-5)


def test_gradients_flow_through_all_windows(tmp_path):
    models = pair(tmp_path, attention="rfa_gated", convolution=4)

    def loss(x, ids):
        outputs = [model(ids, training=True) for model in models]
        return x * sum(ops.sum(ops.square(y)) for y in outputs), outputs

    variables = [x for model in models for x in model.trainable_variables]
    run = compiled(differentiated(loss, variables))
    *_, gradients = run(np.ones((), "float32"), IDS)
    size = len(gradients) // 2
    for i, variable in enumerate(variables[:size]):
        expected, actual = gradients[i], gradients[size + i]
        if np.abs(expected).max() > 1e-6:  # key biases change nothing
            scale = np.abs(expected).max()
            assert_close(variable.path, actual / scale, expected / scale)


def test_each_window_drops_by_itself_and_the_same_when_computed_again():
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 8, embeddings_initializer="ones")(inputs)
    x = keras.layers.Dropout(0.5)(x)
    model = WindowedModel(inputs, MaskedAveragePooling()(x), window=1)

    def total(x, ids):
        averages = model(ids, training=True)
        return x * ops.sum(averages), averages

    run = compiled(differentiated(total, model.trainable_variables))
    ids = np.ones((2, 64), "int32")
    _, averages, _, gradients = run(np.ones((), "float32"), ids)
    # All windows alike would give 0 or 2.
    assert (averages > 0.4).all()
    assert (averages < 1.6).all()
    # Outputs are linear in the vectors, which are 1.
    assert_close("gradient", gradients[0].sum(0), averages.sum(0))
    one, other = (model(ids, training=True) for _ in range(2))
    assert np.abs(as_numpy(one) - as_numpy(other)).max() > 0


@pytest.mark.parametrize(
    ("policy", "tolerance"), [("mixed_float16", 2e-3), ("mixed_bfloat16", 2e-2)]
)
def test_half_precision(policy, tolerance, tmp_path):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        at_once, windowed = pair(tmp_path, attention="rfa_gated")
    finally:
        keras.config.set_dtype_policy(before)
    # XLA does not round at the same places in both.
    assert_close("logits", *logits(windowed, at_once), tolerance)


def test_fit():
    model = classifier(4, num_layers=1, dropout=0.1)
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=XLA,
    )
    before = [ops.convert_to_numpy(x) for x in model.trainable_weights]
    ids = np.random.default_rng(0).integers(20, size=(3, 10))
    model.fit(ids, np.arange(3), epochs=2, verbose=0)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        new = ops.convert_to_numpy(weight)
        assert_finite(weight.path, new)
        assert not np.array_equal(new, old), weight.path


def training_step(model):
    def loss(x, ids):
        return x * ops.sum(ops.square(model(ids, training=True))), ()

    return differentiated(loss, model.trainable_variables)


if keras.backend.backend() != "torch":  # which runs each window by itself

    def test_as_many_operations_for_any_length():
        step = training_step(classifier(4, num_layers=1, dropout=0.1))
        few, many = (
            operations(step, np.ones((), "float32"), np.ones((1, t), "int32"))
            for t in (20, 400)
        )
        assert few[0] == many[0]


if keras.backend.backend() == "jax":  # which tells what it allocates

    def test_memory_is_that_of_a_window():
        step = training_step(classifier(64, num_layers=1, dropout=0.1))
        few, many = (
            peak_memory(step, np.ones((), "float32"), np.ones((1, t), "int32"))
            for t in (128, 2048)
        )
        assert many < 1.5 * few


LOAD = """
import sys
import keras, numpy, keras_rfa
model = keras.saving.load_model(sys.argv[1])
assert type(model).__name__ == "WindowedModel"
assert model.window == 5
numpy.save(sys.argv[3], model.predict(numpy.load(sys.argv[2]), verbose=0))
"""


def test_files(tmp_path):
    at_once, windowed = pair(tmp_path, num_layers=1)
    windowed.save(tmp_path / "model.keras")
    np.save(tmp_path / "ids.npy", IDS)
    paths = [tmp_path / x for x in ("model.keras", "ids.npy", "logits.npy")]
    package = pathlib.Path(keras_rfa.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *paths],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert_close("logits", np.load(paths[-1]), *logits(at_once), 1e-5)
    for weight in at_once.trainable_weights:
        weight.assign(np.zeros(weight.shape))
    windowed.save_weights(tmp_path / "windowed.weights.h5")
    at_once.load_weights(tmp_path / "windowed.weights.h5")
    assert_close("logits", *logits(at_once, windowed), 1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 0}, "Received: window=0"),
        ({"window": 4, "causal": False}, "window=4, causal=False"),
        ({"window": 4, "attention": "softmax"}, "attention='softmax'"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        classifier(**{"attention_options": {}, **arguments})


def test_a_layer_that_reads_windows_adds_no_loss():
    model = classifier(4, attention_options={"activity_regularizer": "l2"})
    with pytest.raises(ValueError, match="`activity_regularizer`"):
        model(IDS, training=True)
