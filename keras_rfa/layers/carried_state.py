from typing import Any

import keras
from keras import ops, tree

from keras_rfa.ops.state import nested

Tensor = Any
State = dict[str, Any]

# Of the keys of nested dicts in the name of a weight: no backend minds it.
SEPARATOR = "-"


class CarriedState(keras.layers.Layer):
    """The state that a `stateful` layer or model keeps from batch to batch.

    It is part of the layer or model. No file holds it: it belongs to the rows
    of one batch.

    Args:
        state: dict of tensors, which may be nested, to begin with. That of an
            attention layer may hold, beside the sums and `"indices"`,
            `"drawn"` `(h,)`, the matrices for training.
        batch_size: int. The rows.
        **kwargs: for `keras.layers.Layer`.
    """

    def __init__(self, state: State, batch_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch_size = batch_size
        self.entries = {
            name: self.add_weight(
                name=name,
                shape=tensor.shape,
                initializer="zeros",
                dtype=keras.backend.standardize_dtype(tensor.dtype),
                trainable=False,
                autocast=False,
            )
            for name, tensor in _by_name(state).items()
        }
        self.write(state)
        self.built = True

    def read(self) -> State:
        """Returns the state, through which no gradient flows."""
        return nested(
            (
                name.split(SEPARATOR),
                ops.stop_gradient(ops.copy(ops.convert_to_tensor(entry))),
            )
            for name, entry in self.entries.items()
        )

    def write(self, state: State) -> None:
        """Keeps a state, or a part of one."""
        for name, tensor in _by_name(state).items():
            self.entries[name].assign(tensor)

    def save_own_variables(self, store: Any) -> None:
        pass

    def load_own_variables(self, store: Any) -> None:
        pass


def _by_name(state: State) -> dict[str, Tensor]:
    return {
        SEPARATOR.join(path): x for path, x in tree.flatten_with_path(state)
    }
