from typing import Any

import keras
from keras import ops

from keras_rfa.ops.checks import check_shape, check_shapes

Tensor = Any
State = dict[str, Tensor]


class StreamingLayer(keras.layers.Layer):
    """A layer of vectors `(b, t, width)` that can also read them in parts.

    Each part is read with the state that the part before it has left. What
    the state holds is said once, by `state_dimensions`.
    """

    def state_dimensions(self, batch: Any) -> dict[str, dict[str, Any]]:
        """Returns the dimensions of each tensor of a state, by their names.

        Args:
            batch: rows of the batch, `b`; `None` where they are not known.
        """
        raise NotImplementedError  # abstract: each subclass has others

    @property
    def state_dtype(self) -> str:
        """The dtype of the tensors of a state."""
        raise NotImplementedError  # abstract: each subclass has others

    def build(self, input_shape: Any) -> None:
        check_shape("inputs", input_shape, batch=None, steps=None, width=None)
        self.width = input_shape[-1]
        self.built = True

    def check_call(self, inputs: Any, mask: Any, initial_state: Any) -> None:
        """Raises a `ValueError` for shapes that do not fit the layer."""
        batch, steps = inputs.shape[:2]
        check_shape("inputs", inputs, batch=None, steps=None, width=self.width)
        if mask is not None:
            check_shape("mask", mask, batch=batch, steps=steps)
        if initial_state is not None:
            dimensions = self.state_dimensions(batch)
            check_shapes("initial_state", initial_state, **dimensions)

    def get_initial_state(
        self, batch_size: Any, training: bool | None = None
    ) -> State:
        """Returns the state of a layer that has read nothing.

        Args:
            batch_size: int. Rows of the batch, `b`.
            training: bool. Not used: nothing is drawn.

        Raises:
            ValueError: if the layer is not built.
        """
        if not self.built:
            raise ValueError(
                f"{self.name!r} must be built before it has a state. Call it "
                "once, or call `build(input_shape)`."
            )
        return {
            name: ops.zeros(tuple(dimensions.values()), self.state_dtype)
            for name, dimensions in self.state_dimensions(batch_size).items()
        }

    def state_spec(self, batch: int | None) -> State:
        """Returns the shapes and dtypes of a state."""
        return {
            name: keras.KerasTensor(
                tuple(dimensions.values()), self.state_dtype
            )
            for name, dimensions in self.state_dimensions(batch).items()
        }
