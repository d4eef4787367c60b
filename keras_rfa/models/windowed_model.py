from collections.abc import Callable
from typing import Any

import keras
from keras import ops, tree

from keras_rfa.layers import SinusoidalPositions
from keras_rfa.layers.rematerialization import rematerialized
from keras_rfa.ops.checks import check_positive

Tensor = Any
Tensors = dict[str, Tensor]


@keras.saving.register_keras_serializable(package="keras_rfa")
class WindowedModel(keras.Model):
    """A model that reads sequences window by window, at no loss.

    It is a Functional model of a chain of layers, with the weights, files and
    summary of one. The layers that look at other steps take and return states,
    and a window begins with those that the window before has left: outputs
    and gradients are those of reading the sequence at once. The last of these
    layers gives one vector for the sequence; the layers after it see what it
    gives at the end of the last window.

    The memory is that of one window, and of the states between windows: in
    training each window is computed again in the backward pass. All windows
    have the same random matrices, and each its own dropout.

    Windows are of one size, the smallest that serves. Where the length is not
    known when a graph is built, padding fills up the last window.

    Args:
        *args: for `keras.Model`: an input of ids `(b, t)`, and an output.
        window: int. The most steps to read at once.
        **kwargs: for `keras.Model`.

    Raises:
        ValueError: if `window` is not positive or not there, and when a layer
            that reads windows adds a loss.
    """

    def __init__(
        self, *args: Any, window: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        if window is None:
            raise ValueError(
                "`window` must be given. `keras.models.clone_model` does not "
                "hand it on: copy a model that reads windows by "
                "`type(model).from_config(model.get_config())`."
            )
        self.window = check_positive("window", window)
        self.seed_generator = keras.random.SeedGenerator()

    def call(
        self, inputs: Tensor, training: bool | None = None, mask: Any = None
    ) -> Tensor:
        (ids,) = tree.flatten(inputs)
        steps = ops.shape(ids)[1]
        if isinstance(steps, int) and steps <= self.window:
            return super().call(inputs, training=training, mask=mask)
        _, *layers = self.layers
        end = 1 + max(i for i, x in enumerate(layers) if _keeps_state(x))
        # In this layer variables are read in their own dtype.
        read = keras.layers.Lambda(
            lambda ids: self._read(layers[:end], ids, training),
            dtype="float32",
            autocast=False,
            name="read",
        )
        x = read(ops.cast(ids, self.inputs[0].dtype))
        for layer in layers[end:]:
            x = layer(x, training=training)
        return x

    def _read(
        self, layers: list[Any], ids: Tensor, training: bool | None
    ) -> Tensor:
        """Returns what the last of the layers gives for the last window."""
        batch = ops.shape(ids)[0]
        # This draws the random matrices, once for all windows.
        states = {
            layer.name: layer.get_initial_state(batch, training)
            for layer in layers
            if _keeps_state(layer)
        }
        trained = [x for layer in layers for x in layer.trainable_weights]
        others = [x for layer in layers for x in layer.non_trainable_weights]
        # Copies, since TensorFlow differentiates no loop in which a variable
        # is read again.
        weights = {str(i): ops.copy(x) for i, x in enumerate(trained)}
        others = [(weight, ops.copy(weight)) for weight in others]
        seeds = _seeds(layers) if training else []

        def read(tensors: Tensors, window: Tensors) -> Tensors:
            """Reads a window; a function of its arguments alone."""
            mapping = [
                *(
                    (weight, tensors[str(i)])
                    for i, weight in enumerate(trained)
                ),
                *((seed, window["seeds"][i]) for i, seed in enumerate(seeds)),
                *others,
            ]
            before = _with_sums(states, tensors)
            after = {}
            x = window["ids"]
            with keras.StatelessScope(mapping, collect_losses=True) as scope:
                for layer in layers:
                    if layer.name in before:
                        x, after[layer.name] = layer(
                            x,
                            training=training,
                            initial_state=before[layer.name],
                            return_state=True,
                        )
                    elif isinstance(layer, SinusoidalPositions):
                        x = layer(x, start_index=window["start_index"])
                    else:
                        x = layer(x, training=training)
            if scope.losses:
                raise ValueError(
                    "A layer that reads windows can not add a loss. Leave out "
                    "`activity_regularizer`, or build the model without "
                    "`window`."
                )
            return {"outputs": x, **_sums(after)}

        def step(carry: Tensors, window: Tensors) -> Tensors:
            return rematerialized(
                lambda tensors: read(tensors, window),
                {**weights, **carry},
                training,
            )

        outputs = layers[-1].output
        outputs = ops.zeros((batch, *outputs.shape[1:]), outputs.dtype)
        carry = {"outputs": outputs, **_sums(states)}
        return _scan(step, carry, self._windows(ids, len(seeds)))["outputs"]

    def _windows(self, ids: Tensor, num_seeds: int) -> Tensors:
        """Returns the ids `(n, b, window)`, and what else windows differ in."""
        batch, steps = ops.shape(ids)
        window = self.window
        # In this form JAX can compare sizes that are not known yet.
        count = (steps + window - 1) // window
        if isinstance(steps, int):
            window = -(-steps // count)
        ids = ops.pad(ids, [[0, 0], [0, count * window - steps]])
        ids = ops.reshape(ids, (batch, count, window))
        windows = {
            "ids": ops.transpose(ids, (1, 0, 2)),
            "start_index": ops.arange(count, dtype="int32") * window,
        }
        if num_seeds:
            # Drawn here: a loop assigns no variable, and a window that is
            # computed again must drop the same.
            windows["seeds"] = keras.random.randint(
                (count, num_seeds, 2),
                0,
                2**31 - 1,
                dtype="int32",
                seed=self.seed_generator,
            )
        return windows

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "window": self.window}


def _keeps_state(layer: Any) -> bool:
    return hasattr(layer, "get_initial_state")


def _seeds(layers: list[Any]) -> list[keras.Variable]:
    """Returns the states of seed generators: variables but not weights."""
    weights = {id(x) for layer in layers for x in layer.weights}
    variables = [x for layer in layers for x in layer.variables]
    return [x for x in variables if id(x) not in weights]


def _sums(states: Any) -> Tensors:
    """Returns the sums of states, all but the indices of matrices."""
    return {
        f"sum_{i}": x
        for i, x in enumerate(tree.flatten(states))
        if keras.backend.is_float_dtype(
            keras.backend.standardize_dtype(x.dtype)
        )
    }


def _with_sums(states: Any, sums: Tensors) -> Any:
    """Returns states with other sums, and the same matrices."""
    flat = tree.flatten(states)
    flat = [sums.get(f"sum_{i}", x) for i, x in enumerate(flat)]
    return tree.pack_sequence_as(states, flat)


def _scan(
    step: Callable[[Tensors, Tensors], Tensors], carry: Tensors, xs: Tensors
) -> Tensors:
    """Returns what is carried after a step for each entry along axis 0."""
    if keras.backend.backend() == "jax":  # which differentiates no while loop
        return ops.scan(lambda carry, x: (step(carry, x), None), carry, xs)[0]
    count = ops.shape(xs["ids"])[0]

    def body(i: Tensor, carry: Tensors) -> tuple[Tensor, Tensors]:
        return i + 1, step(carry, {name: x[i] for name, x in xs.items()})

    # XLA differentiates loops whose number of steps has a known bound.
    return ops.while_loop(
        lambda i, _: i < count, body, (0, carry), maximum_iterations=count
    )[1]
