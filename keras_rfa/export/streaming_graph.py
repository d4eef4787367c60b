"""Models that read in parts as functions of TensorFlow, states as well."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_rfa.export import graphs
from keras_rfa.export.serving_model import converter, shapes_of
from keras_rfa.ops.state import nested

Tensor = Any
# A state as a signature takes and gives it: a tensor for each name.
FlatState = dict[str, Tensor]

# Columns that are read at once. Of one size, so that XLA compiles few shapes.
BLOCK = 64
# For the same reason the ids of a beginning are filled up to a multiple.
_COLUMNS = 32


def room_for(max_length: int) -> int:
    """Returns the slots of a cache for so many tokens, and as many again.

    The first are read in blocks, of which each column takes a slot.
    """
    return -(-max_length // BLOCK) * BLOCK + max_length


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor of a state.

    Args:
        path: its keys in the nested dict.
        shape: sizes, `"rows"`, or `"columns"` of the ids of the beginning.
        dtype: string.
    """

    path: tuple[str, ...]
    shape: tuple[int | str, ...]
    dtype: str

    @property
    def name(self) -> str:
        """What a signature calls it."""
        return re.sub(r"\W", "_", "_".join(("state", *map(str, self.path))))

    @property
    def static_shape(self) -> list[int | None]:
        """The sizes, and `None` for those that are not always the same."""
        return [x if isinstance(x, int) else None for x in self.shape]


class StreamingGraph:
    """A model with `call_with_state`, as functions of TensorFlow.

    Args:
        tf: the module TensorFlow.
        model: a model that has `call_with_state(token_ids, state)`.
        begin: function from ids `(b, s)` to a nested dict, the state that the
            model begins with. For a language model only the rows count.
    """

    def __init__(
        self, tf: Any, model: Any, begin: Callable[[Tensor], Any]
    ) -> None:
        self.tf = tf
        self.entries, self.vocabulary_size = _examine(model, begin)
        convert, self.variables = converter(tf, model)

        def step(token_ids: Tensor, *state: Tensor) -> list[Tensor]:
            logits, after = model.call_with_state(
                token_ids, self._nested(state), training=False
            )
            logits = keras.ops.cast(logits[:, -1], "float32")
            return [logits, *self._flat(after)]

        def read(token_ids: Tensor, *state: Tensor) -> list[Tensor]:
            _, after = model.call_with_state(
                token_ids, self._nested(state), training=False
            )
            return self._flat(after)

        def traced(function: Any, columns: int | str, *state: Entry) -> Any:
            ids = Entry(("token_ids",), ("rows", columns), "int32")
            entries = [ids, *state]
            shapes = [f"({', '.join(map(str, x.shape))})" for x in entries]
            return tf.function(
                convert(function, shapes),
                input_signature=[
                    tf.TensorSpec(x.static_shape, x.dtype) for x in entries
                ],
                autograph=False,
            )

        self._begin = traced(lambda ids: self._flat(begin(ids)), "columns")
        self._read = traced(read, BLOCK, *self.entries)
        self._step = traced(step, 1, *self.entries)

    def signature_of_state(self) -> dict[str, tuple[Any, Any]]:
        """Returns the shape and the dtype of each tensor of a state."""
        tf = self.tf
        return {
            entry.name: (entry.static_shape, tf.as_dtype(entry.dtype))
            for entry in self.entries
        }

    def begin(self, token_ids: Tensor) -> FlatState:
        """Returns the state that the model begins with, from ids `(b, s)`."""
        tf = self.tf
        columns = tf.shape(token_ids)[1]
        filled = (tf.maximum(columns, 1) + _COLUMNS - 1) // _COLUMNS * _COLUMNS
        token_ids = tf.pad(token_ids, [[0, 0], [0, filled - columns]])
        return self._named(self._begin(token_ids))

    def step(
        self, tokens: Tensor, state: FlatState
    ) -> tuple[Tensor, FlatState]:
        """Reads a token `(b,)` of each row, or 0 for none.

        Returns:
            The logits of the next, `(b, v)`, and the state. Logits that are no
            numbers are an error.
        """
        tf = self.tf
        logits, *after = self._step(tokens[:, None], *self._tensors(state))
        logits.set_shape((None, self.vocabulary_size))
        is_number = tf.reduce_all(tf.math.is_finite(logits), axis=-1)
        message = (
            "The logits are no numbers: the state holds some that are none, "
            "or it is full. One of softmax attention has room for as many "
            "tokens as the `max_length` of the export."
        )
        valid = tf.reduce_all(is_number | (tokens == 0))
        return graphs.if_true(tf, valid, logits, [message]), self._named(after)

    def read(
        self, token_ids: Tensor, state: FlatState
    ) -> tuple[Tensor, FlatState]:
        """Reads all tokens of each row but the last.

        Args:
            token_ids: int32 `(b, t)`, with padding at the ends of a row.
            state: what was read before.

        Returns:
            The last token of each row, `(b,)`, 0 if there is none, and the
            state before it.
        """
        tf = self.tf
        token_ids, last = self._without_last(token_ids)
        # The last column is padding now.
        count = (tf.maximum(tf.shape(token_ids)[1] - 1, 0) + BLOCK - 1) // BLOCK
        missing = tf.maximum(count * BLOCK - tf.shape(token_ids)[1], 0)
        token_ids = tf.pad(token_ids, [[0, 0], [0, missing]])

        def body(i: Tensor, state: FlatState) -> tuple[Tensor, FlatState]:
            block = token_ids[:, i * BLOCK : (i + 1) * BLOCK]
            block.set_shape((None, BLOCK))
            after = self._read(block, *self._tensors(state))
            return i + 1, self._named(after)

        _, state = tf.while_loop(lambda i, _: i < count, body, (0, state))
        return last, state

    def _without_last(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns ids without the last token of each row, and that."""
        tf = self.tf
        columns = tf.range(1, tf.shape(token_ids)[1] + 1)
        is_real = tf.cast(token_ids != 0, tf.int32)
        # A column of 0 for rows that have none.
        end = tf.reduce_max(tf.pad(is_real * columns, [[0, 0], [0, 1]]), axis=1)
        is_last = tf.cast(columns == end[:, None], tf.int32)
        last = tf.reduce_sum(token_ids * is_last, axis=1)
        before = token_ids * (1 - is_last)
        later = tf.cumsum(is_real, axis=1, reverse=True, exclusive=True)
        first = tf.cumsum(is_real, axis=1)
        between = (is_real == 0) & (later > 0) & (first > 0)
        message = "0 is padding, and may stand at the ends of a row only"
        valid = tf.reduce_all(~between)
        return graphs.if_true(tf, valid, before, [message]), last

    def check_state(self, state: FlatState, token_ids: Tensor) -> FlatState:
        """Returns a state that was received, one that does not fit as an error.

        Args:
            state: a tensor for each name.
            token_ids: int32 `(b, t)`.
        """
        tf = self.tf
        checked = {}
        for entry in self.entries:
            name = entry.name
            tensor = graphs.a_row_for_each(tf, name, state[name], token_ids)
            if entry.path[-1] == "steps" and entry.shape == ("rows",):
                message = (
                    f"`{name}` must be the same in all rows: the caches of "
                    "softmax attention in a batch go on together"
                )
                same = tf.reduce_all(tensor == tensor[:1])
                tensor = graphs.if_true(tf, same, tensor, [message])
            checked[name] = tensor
        return checked

    def _named(self, tensors: list[Tensor]) -> FlatState:
        """Returns tensors by their names, with what is known of their shape."""
        for entry, tensor in zip(self.entries, tensors, strict=True):
            tensor.set_shape(entry.static_shape)
        names = [entry.name for entry in self.entries]
        return dict(zip(names, tensors, strict=True))

    def _tensors(self, state: FlatState) -> list[Tensor]:
        return [state[entry.name] for entry in self.entries]

    def _flat(self, state: Any) -> list[Tensor]:
        tensors = []
        for entry in self.entries:
            tensor = state
            for key in entry.path:
                tensor = tensor[key]
            tensors.append(tensor)
        return tensors

    def _nested(self, tensors: Any) -> Any:
        paths = (entry.path for entry in self.entries)
        return nested(zip(paths, tensors, strict=True))


def _examine(
    model: Any, begin: Callable[[Tensor], Any]
) -> tuple[list[Entry], int]:
    """Returns the tensors of a state, and the size of the vocabulary.

    Two states of different numbers of rows and columns tell which sizes are
    always the same.

    Raises:
        ValueError: if a tensor of the state has not the rows first.
    """
    states = [shapes_of(begin, np.ones(x, "int32")) for x in ((2, 3), (5, 7))]
    flat = [keras.tree.flatten_with_path(state) for state in states]
    entries = []
    for (path, first), (_, second) in zip(*flat, strict=True):
        shape: list[int | str] = []
        for axis, pair in enumerate(
            zip(first.shape, second.shape, strict=True)
        ):
            if axis == 0 and pair == (2, 5):
                shape.append("rows")
            elif axis > 0 and pair == (3, 7):
                shape.append("columns")
            elif axis > 0 and pair[0] == pair[1]:
                shape.append(int(pair[0]))
            else:
                raise ValueError(
                    "Each tensor of a state must have the rows of the batch "
                    "as its first axis, and other sizes that are constant. "
                    f"Received: at {path} the shapes {tuple(first.shape)} and "
                    f"{tuple(second.shape)} for batches of 2 and 5 rows"
                )
        dtype = keras.backend.standardize_dtype(first.dtype)
        entries.append(Entry(tuple(path), tuple(shape), dtype))
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError(
            "The tensors of a state need names that differ when their keys are "
            f"joined. Received: {names}"
        )
    logits = shapes_of(
        lambda ids: model.call_with_state(ids[:, :1], begin(ids))[0],
        np.ones((2, 3), "int32"),
    )
    return entries, int(logits.shape[-1])
