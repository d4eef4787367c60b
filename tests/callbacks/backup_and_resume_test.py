"""Training that is interrupted, in this process, and resumed."""

import json

import keras
import ml_dtypes
import numpy as np
import pytest
from trainings import (
    SHUFFLE,
    Interrupt,
    Interrupted,
    X,
    Y,
    build,
    callbacks,
    check_refused,
    fit,
    interrupt,
    plateau,
    same,
    states,
    values,
)

import keras_rfa
from keras_rfa.callbacks import BackupAndResume
from keras_rfa.callbacks.backup_file import pack, unpack

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize(
    ("kind", "make", "interrupts"),
    [
        ("dense", plateau, [(1, 1), (2, None)]),
        ("pool", callbacks, [(1, 1)]),
        ("stateful", callbacks, [(1, 1)]),
        ("mixed", callbacks, [(1, 1), (2, None)]),
        ("bfloat16", callbacks, [(2, 0)]),
    ],
)
def test_a_resumed_training_ends_as_an_unbroken_one(
    path, kind, make, interrupts
):
    first = build(kind)
    for moments in [[], interrupts]:
        keras.utils.set_random_seed(1)
        model = build(kind)
        for variable, value in zip(
            model.variables, first.variables, strict=True
        ):
            variable.assign(value)
        keras.utils.set_random_seed(2)
        for moment in moments:
            with pytest.raises(Interrupted):
                fit(model, path, make(), [Interrupt(*moment)])
            model = build(kind)
        listed = make()
        result = fit(model, path, listed)
        if not moments:
            history, unbroken, end = result, values(model), states(listed)
    assert len(history.epoch) >= 3  # all moments came
    same(values(model), unbroken)
    same(result.history, history.history)
    assert result.epoch == history.epoch
    same(states(listed), end)
    assert not list(path.parent.iterdir())


def test_training_that_was_stopped_is_not_resumed(path):
    listed = [keras.callbacks.EarlyStopping("loss", restore_best_weights=True)]
    model = build(optimizer=keras.optimizers.SGD(-0.1))
    with pytest.raises(Interrupted):
        fit(model, path, listed, [Interrupt(1)])  # the loss only grows
    worst = model.get_weights()
    model = build(optimizer=keras.optimizers.SGD(-0.1))
    listed = [keras.callbacks.EarlyStopping("loss", restore_best_weights=True)]
    assert fit(model, path, listed).epoch == [0, 1]
    assert listed[0].stopped_epoch == 1
    same(model.get_weights(), listed[0].best_weights)
    assert not np.array_equal(model.get_weights()[0], worst[0])
    assert not path.exists()


def test_a_file_that_stays_is_gone_on_from(path):
    keras.utils.set_random_seed(1)
    model = build()
    fit(model, path, epochs=2, delete_checkpoint=False)
    before = values(model)
    model = build()
    assert fit(model, path, epochs=2, delete_checkpoint=False).epoch == [0, 1]
    same(values(model), before)
    model = build()
    assert fit(model, path, epochs=4).epoch == [0, 1, 2, 3]
    keras.utils.set_random_seed(1)
    unbroken = build()
    fit(unbroken, path, epochs=4)
    same(values(model), values(unbroken))
    # The next `fit` of the same model begins at the beginning.
    assert fit(model, path, epochs=2).epoch == [0, 1]


def test_a_resumed_model_keeps_its_pools(path, tmp_path):
    model = build("pool")
    interrupt(path, model=model)
    resumed = build("pool")
    fit(resumed, path, epochs=1)
    seeds = [
        [layer.features.pool.seed for layer in x.layers if "att" in layer.name]
        for x in (model, resumed)
    ]
    assert seeds[0] == seeds[1] != []
    keras.Model(resumed.input, resumed.output).save_weights(
        tmp_path / "w.weights.h5"
    )
    loaded = build("pool")
    loaded = keras.Model(loaded.input, loaded.output)
    loaded.load_weights(tmp_path / "w.weights.h5")
    loaded(X[:4], training=True)  # would raise, were it another pool


class OwnModel(keras.Model):
    """A model that Keras cannot serialise."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x, training=None):
        return self.dropout(self.layer(x), training=training)


def test_models_without_a_configuration_are_resumed(path):
    def make(units=1):
        model = OwnModel(keras.layers.Dense(units))
        model(X[:, 0])
        model.compile("adam", "mse", run_eagerly=True)
        return model

    def train(model, *last, epochs=3):
        backup = [BackupAndResume(path), *last]
        model.fit(X[:, 0], Y, 4, epochs, 0, backup, shuffle=SHUFFLE)

    keras.utils.set_random_seed(1)
    unbroken = make()
    train(unbroken)
    keras.utils.set_random_seed(1)
    with pytest.raises(Interrupted):
        train(make(), Interrupt(1, 1))
    with pytest.raises(ValueError, match=r"\(4, 1\)' in the file"):
        train(make(units=2))
    resumed = make()
    train(resumed)
    same(values(resumed), values(unbroken))


def test_no_file_holds_what_a_seed_gives(path, monkeypatch):
    model = build("pool")
    interrupt(path, callbacks(), model=model)
    with np.load(path) as file:
        shapes = [file[name].shape for name in file.files]
    assert (2, 4, 3, 2) not in shapes  # nor do the best weights
    # On a processor that draws otherwise.
    draw = keras_rfa.layers.RandomProjectionPool._matrices
    monkeypatch.setattr(
        keras_rfa.layers.RandomProjectionPool,
        "_matrices",
        lambda pool: draw(pool) * np.float32(1 + 1e-6),
    )
    check_refused(build("pool"), path, callbacks(), "differ between processors")
    monkeypatch.undo()
    # Matrices that no seed gave are in the file.
    (pool,) = (x for x in model.variables if x.path.endswith("/pool"))
    path.unlink()
    pool.assign(pool + 1)
    interrupt(path, callbacks(), model=model)
    resumed = build("pool")
    fit(resumed, path, callbacks(), epochs=1)
    (other,) = (x for x in resumed.variables if x.path.endswith("/pool"))
    same(*(keras.ops.convert_to_numpy(x) for x in (pool, other)))


def test_the_variable_is_set_to_the_epoch(path):
    epoch = keras.Variable(7, dtype="int32", trainable=False)
    seen = []

    class See(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            seen.append(int(epoch.value))

    interrupt(path)
    backup = BackupAndResume(path, epoch=epoch)
    build().fit(X, Y, 12, epochs=3, callbacks=[backup, See()], verbose=0)
    assert seen == [1, 2]


def test_values_of_callbacks_come_back_as_they_were():
    value = {
        "none": None,
        "numbers": [True, 3, 0.1, float("inf"), "text"],
        ("a", 1): (np.float32(0.5), np.int64(2), np.arange(3)),
        "bfloat16": np.ones(2, ml_dtypes.bfloat16),
        "function": keras.ops.less,
    }
    arrays = []
    text = json.dumps(pack(value, arrays))
    back = unpack(json.loads(text), arrays)
    assert back.pop("function") is value.pop("function")
    same(back, value)
    assert [type(x) for x in back["a", 1]] == [type(x) for x in value["a", 1]]
    assert back["bfloat16"].dtype == ml_dtypes.bfloat16
    for other in (object(), {1, 2}, print, np.array([None])):
        with pytest.raises(TypeError):
            pack([1, other], arrays)
