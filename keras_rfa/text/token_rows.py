"""Batches of a long text, each of which goes on where the last one ended."""

import operator
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from keras_rfa.ops.checks import check_positive

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


class TokenRows(keras.utils.PyDataset):
    """Cuts a corpus into rows, and the rows into batches of next tokens.

    The tokens are laid out in `batch_size` rows of as many tokens, and row
    `r` of a batch continues row `r` of the batch before: what a model with
    `stateful=True` needs in `fit`, `evaluate` and `predict`. The label of a
    token is the one after it, also where that begins the next row. So each
    token of the corpus but the very first is a label exactly once. What is
    missing in the last batch is padding, with input and label 0 and sample
    weight 0: it changes no state, and counts in no gradient and in none of the
    `weighted_metrics` of `compile`.

    Pass `shuffle=False` to `fit`, which otherwise shuffles batches itself.

    With `shuffle`, the same segments come in another order in each epoch,
    mixed over rows and batches: for models without state.

    A pass over a large corpus takes long. With `batches_per_epoch` an epoch of
    `fit` is a part of it, the next epoch goes on where the one before ended,
    and a row that comes to its end goes on with the row below it. Unlike
    `steps_per_epoch`, it lets a training be resumed: what is read depends on
    the number of the epoch alone.

    Args:
        ids: integers `(n,)`, the tokens of the corpus, or a list of such
            arrays, which follow one another. 0 is padding, and not in them.
        batch_size: int. Rows of a batch.
        length: int. Steps of a batch.
        shuffle: bool. Whether to mix the segments, anew in each epoch.
        seed: int. Seed of the order.
        epoch: a variable of an integer that holds the number of the epoch
            when it begins, as `keras_rfa.callbacks.BackupAndResume(epoch=...)`
            sets it. Order and place then depend on it and on `seed` alone.
            Without it, epochs are counted as they begin.
        batches_per_epoch: int. How many batches an epoch has; by default, all
            of them. It needs `epoch`.

    Returns of an index:
        `(inputs, labels, sample_weight)`: int32, int32 and float32, all of
        shape `(batch_size, length)`.

    Raises:
        ValueError: if the tokens are not integers from 1 on, or fewer than
            `batch_size + 1`; if `batches_per_epoch` has no `epoch`; or, while
            training, if `fit` shuffles rows that continue each other.

    Example:

    >>> batches = keras_rfa.text.TokenRows([1, 2, 3, 4, 5, 6, 7], 2, 2)
    >>> [inputs.tolist() for inputs, _, _ in batches]
    [[[1, 2], [4, 5]], [[3, 0], [6, 0]]]
    >>> [labels.tolist() for _, labels, _ in batches]
    [[[2, 3], [5, 6]], [[4, 0], [7, 0]]]
    """

    def __init__(
        self,
        ids: Any,
        batch_size: int,
        length: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epoch: Any = None,
        batches_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.batch_size = check_positive("batch_size", batch_size)
        self.length = check_positive("length", length)
        self.ids = _check_ids(ids, self.batch_size)
        self.shuffle = shuffle
        self.seed = check_positive("seed", seed, least=0)
        self.epoch = epoch
        if epoch is not None and not (
            hasattr(epoch, "assign") and tuple(epoch.shape) == ()
        ):
            raise ValueError(
                "`epoch` must be a variable that holds one number, such as "
                '`keras.Variable(0, dtype="int32", trainable=False)`. '
                f"Received: epoch={epoch!r}"
            )
        labels = len(self.ids) - 1
        # Of all rows the lengths differ by 1 at most.
        self._bounds = labels * np.arange(batch_size + 1) // batch_size
        longest = -(-labels // batch_size)
        self._segments = -(-longest // length)
        self._batches = self._segments
        if batches_per_epoch is not None:
            self._batches = check_positive(
                "batches_per_epoch", batches_per_epoch
            )
            if epoch is None:
                raise ValueError(
                    "`batches_per_epoch` needs `epoch`, which tells where an "
                    "epoch begins: pass one variable to TokenRows and "
                    "to keras_rfa.callbacks.BackupAndResume. Received: "
                    f"batches_per_epoch={batches_per_epoch}, epoch=None"
                )
        self._number = 0  # of the epoch
        self._counted = -1
        self._orders: dict[int, np.ndarray] = {}
        self._reading = False
        self._last = -1

    @property
    def num_batches(self) -> int:
        """The batches of an epoch."""
        return self._batches

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[Batch]:
        return (self[index] for index in range(self._batches))

    def __getitem__(self, index: int) -> Batch:
        index = operator.index(index)
        if not 0 <= index < self._batches:
            raise IndexError(
                f"There are {self._batches} batches. Received: index={index}"
            )
        self._check_order(index)
        passes, place = divmod(
            self._number * self._batches + index, self._segments
        )
        rows = np.arange(self.batch_size)
        segments = np.full(self.batch_size, place)
        if self.shuffle:
            cells = self._order(passes)[place * self.batch_size :]
            rows, segments = np.divmod(cells[: self.batch_size], self._segments)
        elif self.epoch is not None:
            rows = (rows + passes) % self.batch_size
        begins = self._bounds[rows] + segments * self.length
        places = begins[:, None] + np.arange(self.length)
        inside = places < self._bounds[rows + 1][:, None]
        places = np.where(inside, places, 0)
        inputs, labels = self.ids[places], self.ids[places + 1]
        return inputs * inside, labels * inside, inside.astype("float32")

    def on_epoch_begin(self) -> None:
        """Reads the number of the epoch."""
        self._counted += 1
        if self.epoch is not None:
            self._number = int(keras.ops.convert_to_numpy(self.epoch))
        elif self.shuffle:
            self._number = self._counted
        if self._last == self._batches - 1:
            self._last = -1
        self._reading = True

    def on_epoch_end(self) -> None:
        """Ends what is known of the epoch."""
        self._reading = False

    def _order(self, passes: int) -> np.ndarray:
        """Returns the segments of all rows, as they come in a pass."""
        if passes not in self._orders:
            draw = np.random.default_rng([self.seed, passes])
            order = draw.permutation(self.batch_size * self._segments)
            # An epoch may end in the pass after the one it began in.
            last = {k: v for k, v in self._orders.items() if k == passes - 1}
            self._orders = {**last, passes: order}
        return self._orders[passes]

    def _check_order(self, index: int) -> None:
        """Raises a `ValueError` when `fit` shuffles what must stay in order.

        Backends may read ahead, even for an epoch that never begins: all that
        is sure is that each batch is asked for after the one before it.
        """
        if self.shuffle or not self._reading:
            return
        if index > self._last + 1:
            raise ValueError(
                "These batches continue each other, and `fit` shuffles them. "
                "Pass `shuffle=False` to `fit`. Received: batch "
                f"{index} after batch {self._last}"
            )
        self._last = max(self._last, index)


def _check_ids(ids: Any, batch_size: int) -> np.ndarray:
    """Returns the tokens as one int32 array, or raises a `ValueError`."""
    parts = [ids]
    if isinstance(ids, list | tuple) and any(np.ndim(part) for part in ids):
        parts = list(ids)
    arrays = [keras.ops.convert_to_numpy(part) for part in parts]
    for array in arrays:
        is_integer = np.issubdtype(array.dtype, np.integer)
        if array.ndim != 1 or (array.size and not is_integer):
            raise ValueError(
                "`ids` must be integers of shape (n,), or a list of such "
                f"arrays. Received: dtype {array.dtype}, shape {array.shape}"
            )
    tokens = np.concatenate([np.zeros(0, "int64"), *filter(np.size, arrays)])
    least, most = (tokens.min(), tokens.max()) if tokens.size else (1, 1)
    if least < 1 or most > np.iinfo("int32").max:
        raise ValueError(
            "`ids` must be from 1 on: 0 is padding, which is no part of a "
            "corpus. Take it off, as by `ids[ids > 0]`. Received: ids from "
            f"{least} to {most}"
        )
    if len(tokens) < batch_size + 1:
        raise ValueError(
            "`ids` must have a label for each row at least, so one token more "
            "than `batch_size`. Pass a longer corpus, or a smaller "
            f"`batch_size`. Received: {len(tokens)} tokens and "
            f"batch_size={batch_size}"
        )
    return tokens.astype("int32")
