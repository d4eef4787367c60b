"""New sequences for layers that carry a state from batch to batch."""

from collections.abc import Iterator
from typing import Any

import keras


class ResetStates(keras.callbacks.Callback):
    """Begins new sequences with each epoch, and around each validation.

    A layer with `stateful=True` continues in a batch what the batch before
    held, also from one epoch to the next, and from training to validation and
    back. With this callback

    - each epoch of `fit` begins with nothing read,
    - and so does each validation, each `evaluate` and each `predict`, which
      also leave nothing behind.

    What is reset is the model, if it is stateful itself, or else each layer in
    it that is, at any depth: those of this package, and Keras' own recurrent
    layers (which do not carry a state on JAX). Random matrices that training
    draws are drawn anew with it. Between two batches nothing is reset: on JAX
    it would not reach the next one.

    It goes with `BackupAndResume`, before or after it: a training that is
    resumed begins its epochs as it would have begun them.

    Raises:
        ValueError: as soon as it is used, if nothing in the model is stateful.

    Example:

    ```python
    batches = keras_rfa.text.TokenRows(ids, batch_size=8, length=256)
    reset = keras_rfa.callbacks.ResetStates()
    model.fit(batches, epochs=3, shuffle=False, callbacks=[reset])
    model.evaluate(batches, callbacks=[reset])
    ```
    """

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins new sequences to train on."""
        self._reset()

    def on_test_begin(self, logs: Any = None) -> None:
        """Begins new sequences to evaluate."""
        self._reset()

    def on_test_end(self, logs: Any = None) -> None:
        """Leaves nothing behind."""
        self._reset()

    def on_predict_begin(self, logs: Any = None) -> None:
        """Begins new sequences to predict from."""
        self._reset()

    def on_predict_end(self, logs: Any = None) -> None:
        """Leaves nothing behind."""
        self._reset()

    def _reset(self) -> None:
        stateful = list(_stateful(self.model))
        if not stateful:
            raise ValueError(
                "ResetStates has nothing to reset: no layer of the model "
                "carries a state. Build the model, or a layer, with "
                "`stateful=True`, or leave out the callback. "
                f"Received: model {self.model.name!r}"
            )
        for layer in stateful:
            layer.reset_state()


def _stateful(layer: Any) -> Iterator[Any]:
    """Yields the outermost layers that carry a state."""
    if getattr(layer, "stateful", False) and hasattr(layer, "reset_state"):
        yield layer
        return
    for inner in layer._flatten_layers(include_self=False, recursive=False):
        yield from _stateful(inner)
