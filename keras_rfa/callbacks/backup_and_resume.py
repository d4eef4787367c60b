"""Training that goes on, after an interruption, as if there had been none."""

import os
import pathlib
import random
import zlib
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from keras_rfa.callbacks.backup_file import (
    pack,
    pack_attributes,
    read,
    unfinished,
    unpack,
    write,
)
from keras_rfa.callbacks.fingerprint import differences, fingerprint
from keras_rfa.layers import RandomProjectionPool


class BackupAndResume(keras.callbacks.BackupAndRestore):
    """Resumes an interrupted `fit`, with the weights it would have ended with.

    After each epoch everything that the next epochs depend on is written to
    one file: the variables of the model and of its optimizer, among them the
    states of dropout, of random projection pools and of layers that carry
    one; the history; the random states of Python, NumPy and torch; and what
    other `callbacks` know. When the program is started again, `fit` reads the
    file, begins with the epoch that was interrupted, and ends bit for bit
    where it would have ended, on the same machine and versions, if three
    things hold:

    - The program builds and compiles the same model. Otherwise `fit` raises an
      error that says what differs, and changes nothing. Seeds may differ.
    - An epoch reads the same data in the same order as before. Shuffle with
      `keras_rfa.text.bucket_batches(..., epoch=epoch)`, or not at all: what
      TensorFlow shuffles otherwise starts anew. Leave out `steps_per_epoch`,
      with which an epoch begins where the one before ended.
    - Callbacks whose decisions depend on earlier epochs are in `callbacks`.

    A file is never half written: it takes the place of the one before when it
    is complete. It is deleted when `fit` ends. Before the first epoch has
    ended there is none, and the program begins anew.

    Args:
        path: the file to write.
        epoch: `tf.Variable`, a scalar of int64, that is set to the number of
            the epoch before its data is read.
        callbacks: list of callbacks, such as `EarlyStopping`,
            `ReduceLROnPlateau` and `ModelCheckpoint`, that come before this
            one in `fit(callbacks=...)`. Their attributes are restored with
            the rest, settings too, as far as they are numbers, strings,
            booleans, `None`, NumPy arrays or functions of `keras.ops`, or
            lists, tuples and dicts of these. Others stay as the program made
            them.
        delete_checkpoint: bool. Whether to delete the file when `fit` ends.
            Where it stays, `fit` with more `epochs` goes on from it.

    Raises:
        ValueError: if `path` is a directory, if `epoch` or one of `callbacks`
            is something else, or, in `fit`, if the model is not built, if
            `callbacks` do not come before this one, or if the file is damaged
            or the backup of another training.

    Example:

    ```python
    with tf.device("CPU"):
        epoch = tf.Variable(0, dtype=tf.int64)
    batches = keras_rfa.text.bucket_batches(
        dataset, [256, 512], 16384, shuffle_buffer=10000, seed=0, epoch=epoch)
    stopping = keras.callbacks.EarlyStopping(restore_best_weights=True)
    backup = keras_rfa.callbacks.BackupAndResume(
        "training.backup", epoch=epoch, callbacks=[stopping])
    model.fit(batches, epochs=10, validation_data=validation,
              callbacks=[stopping, backup])
    ```
    """

    # Keras waits after each batch for callbacks that do not say this.
    async_safe = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        epoch: Any = None,
        callbacks: Iterable[keras.callbacks.Callback] = (),
        delete_checkpoint: bool = True,
    ) -> None:
        self.path = pathlib.Path(path)
        super().__init__(str(path), delete_checkpoint=delete_checkpoint)
        if self.path.is_dir():
            raise ValueError(
                "`path` must be a file, and is a directory. "
                f"Received: path={str(path)!r}"
            )
        if epoch is not None and not (
            hasattr(epoch, "assign") and tuple(epoch.shape) == ()
        ):
            raise ValueError(
                "`epoch` must be a variable that holds one number, such as "
                f"`tf.Variable(0, dtype=tf.int64)`. Received: epoch={epoch!r}"
            )
        self.epoch = epoch
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            if not isinstance(callback, keras.callbacks.Callback):
                raise ValueError(
                    "`callbacks` must be a list of Keras callbacks. "
                    f"Received: {callback!r} in it"
                )
        self._later: list[Any] = []
        self._past_epochs: list[int] = []
        self._matrices: list[np.ndarray] = []

    def set_params(self, params: Any) -> None:
        """Notes which callbacks come later."""
        super().set_params(params)
        # `fit` gives the same object to one callback after the other.
        self._later = [
            callback
            for callback in self.callbacks
            if callback.params is not params
        ]

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores what a file holds."""
        if self._later:
            raise ValueError(
                f"{type(self._later[0]).__name__} must come before "
                "BackupAndResume in `fit(callbacks=[...])`, since it is in "
                "the `callbacks` of BackupAndResume, which saves what it did "
                "in an epoch. Received: it comes later, or is not there."
            )
        if not self.model.built:
            raise ValueError(
                "The model must be built before `fit`, so that it can be "
                "compared with a backup. Call it on a batch, or give it an "
                f"`Input`. Received: {self.model.name!r}, which is not built."
            )
        self._past_epochs = []
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            self._restore(*read(self.path))
        else:
            self._matrices = [
                _draw(pool, pool.seed) for pool in _pools(self.model)
            ]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Tells the data which epoch it is."""
        self._resumed()
        if self.epoch is not None:
            self.epoch.assign(epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Writes the file."""
        # The file refers to matrices that their seeds give, and has none.
        arrays = list(self._matrices)
        header = {
            **fingerprint(self.model, self.callbacks),
            "epoch": epoch + 1,
            "stopped": bool(self.model.stop_training),
            "history": pack(self._history(epoch, logs or {}), arrays),
            "states": [pack_attributes(x, arrays) for x in self.callbacks],
            "random": pack(_random_states(), arrays),
            "seeds": [pool.seed for pool in _pools(self.model)],
            "checksums": _checksums(self._matrices),
            "values": [
                pack(keras.ops.convert_to_numpy(variable), arrays)
                for variable in self._variables()
            ],
        }
        write(self.path, header, arrays[len(self._matrices) :])

    def on_train_end(self, logs: Any = None) -> None:
        """Deletes the file."""
        self._resumed()
        if self.delete_checkpoint:
            self.path.unlink(missing_ok=True)
            unfinished(self.path).unlink(missing_ok=True)

    def _restore(self, header: Any, arrays: list[np.ndarray]) -> None:
        """Checks everything, and then changes everything."""
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        here = fingerprint(self.model, self.callbacks)
        saved = {name: header.get(name) for name in here}
        found = list(differences(saved, here))
        if found:
            raise ValueError(
                f"{str(self.path)!r} is the backup of another training. "
                f"{len(found)} differences: "
                f"{'; '.join(found[:5])}. Nothing was restored. Build "
                "and compile the model as it was, or delete the file to begin "
                "anew."
            )
        pools, seeds = _pools(self.model), header["seeds"]
        matrices = [_draw(*pair) for pair in zip(pools, seeds, strict=True)]
        if _checksums(matrices) != header["checksums"]:
            raise ValueError(
                f"The random matrices of {str(self.path)!r} come out "
                "otherwise here: orthogonal ones can differ between "
                "processors in the last digit. Nothing was restored. Resume "
                "on the kind of processor that training began on, or delete "
                "the file to begin anew."
            )
        arrays = [*matrices, *arrays]
        values = [unpack(value, arrays) for value in header["values"]]
        history = unpack(header["history"], arrays)
        states = [unpack(state, arrays) for state in header["states"]]
        random_states = unpack(header["random"], arrays)
        for variable, value in zip(self._variables(), values, strict=True):
            variable.assign(value)
        self._matrices = matrices
        for pool, seed in zip(pools, seeds, strict=True):
            pool.seed, pool.can_train = seed, True
        for callback, state in zip(self.callbacks, states, strict=True):
            vars(callback).update(state)
        _set_random_states(*random_states)
        self.model.history.history = history["history"]
        self._past_epochs = history["epoch"]
        self.model._initial_epoch = header["epoch"]
        if header["stopped"]:
            self.model.stop_training = True
            self.model._initial_epoch = self.params["epochs"]

    def _resumed(self) -> None:
        """Ends what concerns the beginning of `fit` alone."""
        self.model._initial_epoch = None
        if self._past_epochs:
            # Keras empties the list after `on_train_begin`.
            self.model.history.epoch = self._past_epochs
            self._past_epochs = []

    def _history(self, epoch: int, logs: dict[str, Any]) -> dict[str, Any]:
        """Returns the history with this epoch, which Keras adds last."""
        history = self.model.history
        epochs, values = list(history.epoch), dict(history.history)
        if epoch not in epochs[-1:]:
            epochs.append(epoch)
            for name, value in logs.items():
                values[name] = [*values.get(name, []), value]
        return {"epoch": epochs, "history": values}

    def _variables(self) -> list[Any]:
        return [*self.model.variables, *self.model.optimizer.variables]


def _pools(model: keras.Model) -> list[RandomProjectionPool]:
    return [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, RandomProjectionPool)
    ]


def _draw(pool: RandomProjectionPool, seed: int) -> np.ndarray:
    """Returns the matrices that a pool draws from a seed, but the first."""
    copy = RandomProjectionPool.from_config({**pool.get_config(), "seed": seed})
    return np.ascontiguousarray(copy._matrices()[:, 1:])


def _checksums(matrices: list[np.ndarray]) -> list[int]:
    return [zlib.crc32(drawn.tobytes()) for drawn in matrices]


def _random_states() -> list[Any]:
    """Returns the states of generators that belong to the whole process.

    Keras shuffles arrays with NumPy's on JAX, and on torch draws dropout
    without a seed from those of torch.
    """
    states = [random.getstate(), np.random.get_state()]
    if keras.backend.backend() == "torch":
        import torch

        tensors = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
        states.append([tensor.numpy() for tensor in tensors])
    return states


def _set_random_states(of_python: Any, of_numpy: Any, *of_torch: Any) -> None:
    random.setstate(of_python)
    np.random.set_state(of_numpy)
    if of_torch:
        import torch

        cpu, *gpus = map(torch.from_numpy, of_torch[0])
        torch.set_rng_state(cpu)
        torch.cuda.set_rng_state_all(gpus)
