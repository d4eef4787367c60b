from typing import Any

import keras
from keras import ops

Tensor = Any
State = dict[str, Tensor]


class CarriedState(keras.layers.Layer):
    """The state that a `stateful` layer keeps from batch to batch.

    It is part of the attention layers. No file holds it: it belongs to the
    rows of one batch.

    Args:
        state: dict of tensors to begin with. Beside the sums and `"indices"`
            it may hold `"drawn"` `(h,)`, the matrices for training.
        **kwargs: for `keras.layers.Layer`.
    """

    def __init__(self, state: State, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch_size = state["s"].shape[0]
        self.entries = {
            name: self.add_weight(
                name=name,
                shape=tensor.shape,
                initializer="zeros",
                dtype=keras.backend.standardize_dtype(tensor.dtype),
                trainable=False,
                autocast=False,
            )
            for name, tensor in state.items()
        }
        self.write(state)
        self.built = True

    def read(self) -> State:
        """Returns the state, through which no gradient flows."""
        return {
            name: ops.stop_gradient(ops.copy(ops.convert_to_tensor(entry)))
            for name, entry in self.entries.items()
        }

    def write(self, state: State) -> None:
        """Keeps a state."""
        for name, tensor in state.items():
            self.entries[name].assign(tensor)

    def save_own_variables(self, store: Any) -> None:
        pass

    def load_own_variables(self, store: Any) -> None:
        pass
