"""Hyperparameters of models with our layers, searched by KerasTuner.

It needs the package keras-tuner, which the extra "test" installs.
"""

import keras
import keras_tuner
import numpy as np

from keras_rfa.models import document_classifier

random = np.random.default_rng(0)
IDS = random.integers(1, 20, (8, 10)).astype("int32")
CLASSES = IDS[:, 0] % 2


def build(choices):
    model = document_classifier(
        20,
        2,
        num_layers=1,
        hidden_dim=8,
        num_heads=2,
        intermediate_dim=16,
        attention="rfa",
        attention_options={"num_features": 8, "seed": 1},
        dropout=0.0,
    )
    rate = choices.Choice("rate", [0.0, 0.3])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss)
    return model


def test_a_search(tmp_path):
    tuner = keras_tuner.GridSearch(build, "loss", directory=tmp_path)
    tuner.search(IDS, CLASSES, epochs=4, verbose=0)
    best, other = tuner.oracle.get_best_trials(2)
    assert (best.hyperparameters["rate"], other.hyperparameters["rate"]) == (
        0.3,
        0.0,
    )
    assert best.score < other.score
    (model,) = tuner.get_best_models()
    assert model.predict(IDS, verbose=0).shape == (8, 2)
