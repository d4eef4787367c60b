"""Training that is interrupted, in this process, and resumed."""

import json

import keras
import ml_dtypes
import numpy as np
import pytest

import keras_rfa
from keras_rfa.callbacks import BackupAndResume
from keras_rfa.callbacks.backup_file import pack, unpack

pytestmark = pytest.mark.usefixtures("quick_compilation")
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


@pytest.fixture
def path(tmp_path):
    return tmp_path / "backups" / "training.backup"


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": 5}, r"variables/model/0 is 'dense/kernel: float32 \(4, 3\)"),
        ({"rate": 0.4}, r"model/.*/rate is 0.3 in the file and 0.4 here"),
        ({"loss": "mae"}, r"loss is 'mse' in the file and 'mae' here"),
        (
            {"optimizer": keras.optimizers.SGD()},
            r"optimizer/class_name is 'AdamW' in the file and 'SGD' here",
        ),
        (
            {"optimizer": keras.optimizers.AdamW(beta_1=0.8)},
            r"1 differences: optimizer/config/beta_1 is 0.9 in the file",
        ),
        ({"kind": "pool"}, r"layers has 5 in the file and 6 here"),
        ({"kind": "bfloat16"}, r"is 'float32' in the file and 'bfloat16'"),
    ],
)
def test_the_backup_of_another_model_changes_nothing(path, options, message):
    interrupt(path, callbacks())
    model, listed = build(**options), callbacks()
    check_refused(model, path, listed, message)


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


def test_backups_with_other_callbacks_or_versions_change_nothing(
    path, monkeypatch
):
    interrupt(path, callbacks())
    check_refused(build(), path, [], "callbacks has 2 in the file and 0 here")
    reverse = callbacks()[::-1]
    check_refused(build(), path, reverse, "callbacks/0 is 'Counter' in")
    monkeypatch.setattr(keras_rfa, "__version__", "9.9")
    message = "keras_rfa is '.*' in the file and '9.9' here"
    check_refused(build(), path, callbacks(), message)
    # Nothing was lost: with the right version it goes on.
    monkeypatch.undo()
    assert fit(build(), path, callbacks(), epochs=2).epoch == [0, 1]


def flip(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[: len(data) // 2], "damaged"),
        (lambda data: data[:-1], "damaged"),
        (lambda data: b"", "damaged"),
        (lambda data: b"epoch,loss\n", "is no backup"),
        (flip, "damaged"),
        (lambda data: data.replace(b"backup 1", b"backup 2"), "damaged"),
    ],
)
def test_damaged_files_change_nothing(path, damage, message):
    interrupt(path)
    path.write_bytes(damage(path.read_bytes()))
    check_refused(build(), path, [], message)


def test_files_of_others_change_nothing(path):
    path.parent.mkdir()
    with open(path, "wb") as file:
        np.savez(file, weights=np.ones(3))
    check_refused(build(), path, [], "is no backup")
    with open(path, "wb") as file:
        np.save(file, np.ones(3))
    check_refused(build(), path, [], "is no backup")
    header = json.dumps({"format": "keras_rfa backup 2"}).encode()
    with open(path, "wb") as file:
        np.savez(file, header=np.frombuffer(header, "uint8"))
    check_refused(build(), path, [], "another version of keras_rfa")


def test_a_failed_write_leaves_the_file_before(path, monkeypatch):
    interrupt(path)
    before = path.read_bytes()

    def fail(file, *arrays, **others):
        file.write(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="No space"):
        fit(build(), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_bad_arguments(path, tmp_path):
    with pytest.raises(ValueError, match="is a directory"):
        BackupAndResume(tmp_path)
    with pytest.raises(ValueError, match="Received: epoch=3"):
        BackupAndResume(path, epoch=3)
    with pytest.raises(ValueError, match="list of Keras callbacks"):
        BackupAndResume(path, callbacks=["early"])
    counter, backup = Counter(), BackupAndResume(path)
    backup = BackupAndResume(path, callbacks=[counter])
    model = build()
    for passed in ([backup, counter], [backup]):
        with pytest.raises(ValueError, match="Counter must come before"):
            model.fit(X, Y, callbacks=passed, verbose=0)
    model.fit(X, Y, 4, callbacks=[counter, backup], verbose=0)
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    unbuilt.compile("sgd", "mse")
    backup.set_model(unbuilt)
    with pytest.raises(ValueError, match="must be built before `fit`"):
        backup.on_train_begin()


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
