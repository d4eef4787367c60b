"""New sequences at each epoch, and around each validation."""

import keras
import numpy as np
import pytest

from keras_rfa.callbacks import BackupAndResume, ResetStates
from keras_rfa.layers import RandomFeatureAttention, RandomProjectionPool
from keras_rfa.models import language_model
from keras_rfa.testing import as_numpy, assert_close
from keras_rfa.text import TokenRows

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROWS, LENGTH = 2, 4
DRAW = np.random.default_rng(0)
BATCHES = TokenRows(DRAW.integers(1, 20, 25), ROWS, LENGTH)
VALIDATION = TokenRows(DRAW.integers(1, 20, 25), ROWS, LENGTH)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def attention(**arguments):
    return RandomFeatureAttention(
        2, 4, num_features=8, seed=1, stateful=True, **arguments
    )


def build(kind="layer", pool_size=1, **compile_options):
    """Returns a compiled model that carries a state."""
    if kind == "model":
        model = language_model(
            20,
            num_layers=1,
            hidden_dim=8,
            num_heads=2,
            intermediate_dim=8,
            attention="linear",  # draws nothing
            convolution=2,
            dropout=0.0,
            stateful=True,
            batch_size=ROWS,
        )
    else:
        x = ids = keras.Input(batch_shape=(ROWS, LENGTH), dtype="int32")
        x = keras.layers.Embedding(20, 8)(x)
        if kind == "recurrent":
            x = keras.layers.GRU(8, stateful=True, return_sequences=True)(x)
        else:
            pool = RandomProjectionPool(2, 8, 4, pool_size=pool_size, seed=1)
            layer = attention(projection_pool=pool)
            y = layer(x, x, use_causal_mask=True)
            if kind == "nested":
                inner = keras.Model(ids, x + y)
                y = keras.models.Sequential([inner])(ids)
            x = x + y
        model = keras.Model(ids, keras.layers.Dense(20)(x))
    # On JAX that is always compiled; on TensorFlow it is a graph, which is what
    # carries the variables, and quicker to make than with XLA.
    options = {"jit_compile": keras.backend.backend() == "jax"}
    model.compile(keras.optimizers.SGD(0.5), LOSS, **options | compile_options)
    return model


def stateful_part(model):
    """Returns what has `reset_state`, found by hand."""
    if hasattr(model, "reset_state"):
        return model
    while True:
        for layer in model.layers:
            if isinstance(layer, RandomFeatureAttention | keras.layers.RNN):
                return layer
        (model,) = (x for x in model.layers if hasattr(x, "layers"))


def fit(model, **options):
    return model.fit(BATCHES, shuffle=False, verbose=0, **options)


# Keras' own recurrent layers carry a state in training on TensorFlow only, and
# on JAX none at all.
KINDS = ["layer", "nested", "model"]
TRAINED, EVALUATED = {
    "jax": (KINDS, KINDS),
    "tensorflow": ([*KINDS, "recurrent"], [*KINDS, "recurrent"]),
    "torch": (KINDS, [*KINDS, "recurrent"]),
}[keras.backend.backend()]


@pytest.mark.parametrize("kind", TRAINED)
def test_training_and_validation_begin_anew(kind):
    model, by_hand = build(kind), build(kind)
    by_hand.set_weights(model.get_weights())
    # What was read before `fit` does not count.
    model.predict(BATCHES, verbose=0)
    history = fit(
        model, epochs=3, validation_data=VALIDATION, callbacks=[ResetStates()]
    ).history
    part = stateful_part(by_hand)
    for epoch in range(3):
        part.reset_state()
        # A `fit` of its own has no state of the epoch before but the one that
        # is left in the variables.
        losses = fit(by_hand).history["loss"]
        assert_close("loss", history["loss"][epoch], losses[0], 1e-5)
        part.reset_state()
        loss = by_hand.evaluate(VALIDATION, verbose=0)
        assert_close("val_loss", history["val_loss"][epoch], loss, 1e-5)
    part.reset_state()
    for a, b in zip(model.weights, by_hand.weights, strict=True):
        assert_close(a.path, as_numpy(a), as_numpy(b), 1e-5)


def test_without_it_they_do_not():
    model, other = build(), build()
    other.set_weights(model.get_weights())
    with_it = fit(
        model, epochs=2, validation_data=VALIDATION, callbacks=[ResetStates()]
    ).history
    without = fit(other, epochs=2, validation_data=VALIDATION).history
    assert with_it["loss"][0] == pytest.approx(without["loss"][0])
    for name, epoch in (("val_loss", 0), ("loss", 1)):
        assert abs(with_it[name][epoch] - without[name][epoch]) > 1e-4


@pytest.mark.parametrize("kind", EVALUATED)
def test_evaluate_and_predict_begin_and_leave_nothing(kind):
    model = build(kind)
    reset = [ResetStates()]
    loss = model.evaluate(BATCHES, verbose=0, callbacks=reset)
    first = model.predict(BATCHES, verbose=0, callbacks=reset)
    # Nothing was left, so that it is the same without the callback, once.
    again = model.predict(BATCHES, verbose=0)
    assert_close("outputs", again, first, 1e-6)
    other = model.predict(BATCHES, verbose=0)
    assert np.abs(other - first).max() > 1e-4
    again = model.predict(BATCHES, verbose=0, callbacks=reset)
    assert_close("outputs", again, first, 1e-6)
    model.predict(BATCHES, verbose=0)
    again = model.evaluate(BATCHES, verbose=0, callbacks=reset)
    assert again == pytest.approx(loss, rel=1e-6)


def test_both_directions_of_a_recurrent_layer():
    ids = keras.Input(batch_shape=(ROWS, LENGTH, 3))
    layer = keras.layers.LSTM(4, stateful=True)
    model = keras.Model(ids, keras.layers.Bidirectional(layer)(ids))
    x = DRAW.normal(size=(3 * ROWS, LENGTH, 3)).astype("float32")
    first, again = (
        model.predict(x, ROWS, verbose=0, callbacks=[ResetStates()])
        for _ in range(2)
    )
    assert_close("outputs", again, first, 1e-6)


class Interrupt(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            raise KeyboardInterrupt


def test_a_resumed_training_begins_its_epochs_as_an_unbroken_one(tmp_path):
    def train(*last):
        keras.utils.set_random_seed(3)
        model = build(pool_size=50)
        backup = BackupAndResume(tmp_path / "training.backup")
        callbacks = [ResetStates(), backup, *last]
        fit(model, epochs=3, callbacks=callbacks)
        return [as_numpy(variable) for variable in model.variables]

    unbroken = train()
    with pytest.raises(KeyboardInterrupt):
        train(Interrupt())
    assert (tmp_path / "training.backup").exists()
    np.testing.assert_equal(train(), unbroken, strict=True)


def test_a_model_without_state_is_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    x, y = np.zeros((2, 3)), np.zeros((2, 2))
    with pytest.raises(ValueError, match=r"nothing to reset.*stateful=True"):
        model.fit(x, y, verbose=0, callbacks=[ResetStates()])
