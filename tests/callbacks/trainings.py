"""Small trainings that are interrupted in this process."""

import keras
import numpy as np
import pytest

import keras_rfa
from keras_rfa.callbacks import BackupAndResume

# TensorFlow's shuffling of arrays starts anew.
SHUFFLE = keras.backend.backend() != "tensorflow"
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(12, 6, 4)).astype("float32")
Y = DRAW.normal(size=(12, 1)).astype("float32")


class Interrupted(Exception):
    pass


class Interrupt(keras.callbacks.Callback):
    """Ends training in a batch, or after an epoch."""

    def __init__(self, epoch, batch=None):
        super().__init__()
        self.target, self.batch, self.epoch = epoch, batch, None

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (self.target, self.batch):
            raise Interrupted

    def on_epoch_end(self, epoch, logs=None):
        if (epoch, None) == (self.target, self.batch):
            raise Interrupted


class Counter(keras.callbacks.Callback):
    """A callback of the user's own, with values of many kinds."""

    def __init__(self):
        super().__init__()
        self.sums = {"batches": 0, ("a", 1): [np.float32(0.5), None]}
        self.losses = np.zeros(0)
        self.lock = object()

    def on_train_begin(self, logs=None):
        self.sums["batches"] = 0

    def on_train_batch_end(self, batch, logs=None):
        self.sums["batches"] += 1

    def on_epoch_end(self, epoch, logs=None):
        self.losses = np.append(self.losses, logs["loss"])


def build(kind="dense", units=3, rate=0.3, loss="mse", optimizer=None):
    """Returns a compiled model whose seeds and names are always others."""
    policy = {"mixed": "mixed_float16", "bfloat16": "bfloat16"}.get(kind)
    x = inputs = keras.Input(batch_shape=(4, 6, 4))
    if kind in ("pool", "stateful"):
        attention = keras_rfa.layers.RandomFeatureAttention(
            2,
            2,
            projection_pool=keras_rfa.layers.RandomProjectionPool(2, 3, 2, 5),
            stateful=kind == "stateful",
        )
        x = attention(x, x, use_causal_mask=kind == "stateful")
    x = keras.layers.Dense(units, dtype=policy)(x)
    x = keras.layers.Dropout(rate)(x)
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype=policy)(x))
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 15)
    if optimizer is None:
        rate = 0.1 if kind == "dense" else schedule
        optimizer = keras.optimizers.AdamW(rate)
    if kind == "mixed":
        optimizer = keras.optimizers.LossScaleOptimizer(
            optimizer, initial_scale=2.0**17, dynamic_growth_steps=4
        )
    # Tracing and compiling takes far longer than these few steps.
    model.compile(optimizer, loss, run_eagerly=True)
    return model


def callbacks():
    """Returns callbacks that decide by what earlier epochs gave."""
    return [
        Counter(),
        keras.callbacks.EarlyStopping(
            "loss", min_delta=0.05, patience=2, restore_best_weights=True
        ),
    ]


def plateau():
    return [
        *callbacks(),
        keras.callbacks.ReduceLROnPlateau(
            "loss", factor=0.5, patience=1, min_delta=0.2, cooldown=1
        ),
    ]


def fit(model, path, listed=(), last=(), epochs=4, **options):
    backup = BackupAndResume(path, callbacks=listed, **options)
    return model.fit(
        X,
        Y,
        batch_size=4,
        shuffle=SHUFFLE,
        epochs=epochs,
        callbacks=[*listed, backup, *last],
        verbose=0,
    )


def interrupt(path, listed=(), epoch=1, model=None):
    """Leaves a backup of one epoch, or more."""
    with pytest.raises(Interrupted):
        fit(model or build(), path, listed, [Interrupt(epoch, 0)])


def values(model):
    variables = [*model.variables, *model.optimizer.variables]
    return [np.array(keras.ops.convert_to_numpy(v)) for v in variables]


def states(listed):
    """Returns what can be compared of callbacks."""
    return [
        {
            name: value
            for name, value in vars(callback).items()
            if name not in ("_model", "params", "lock")
        }
        for callback in listed
    ]


def same(a, b):
    np.testing.assert_equal(a, b, strict=True)


def check_refused(model, path, listed, message):
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    before, written = values(model), path.read_bytes()
    with pytest.raises(ValueError, match=message):
        fit(model, path, listed)
    same(values(model), before)
    assert path.read_bytes() == written
    assert model._initial_epoch is None
    assert all(getattr(x, "best", None) is None for x in listed)
