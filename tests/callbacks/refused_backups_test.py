"""Backups that do not fit, and what they leave as it was."""

import json

import keras
import numpy as np
import pytest
from trainings import (
    Counter,
    X,
    Y,
    build,
    callbacks,
    check_refused,
    fit,
    interrupt,
)

import keras_rfa
from keras_rfa.callbacks import BackupAndResume

pytestmark = pytest.mark.usefixtures("quick_compilation")


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
