"""The promises on what a layer computes."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_rfa.testing.assertions import (
    assert_close,
    assert_equal,
    assert_finite,
)
from keras_rfa.testing.backends import as_numpy, compiled, differentiated
from keras_rfa.testing.reference import attention_reference
from keras_rfa.testing.subject import CHUNK_SIZE, MakeLayer, Reference, Subject

Array = Any


def check_reference(
    make_layer: MakeLayer,
    form: str = "causal",
    reference: Reference | None = attention_reference,
) -> None:
    """Checks outputs against float64, one step after another.

    The lengths stand around the chunk size. The last row is padded.

    Args:
        make_layer: function without arguments that returns a new layer.
        form: string, one of `"causal"`, `"bidirectional"` and `"cross"`.
        reference: function `(layer, query, value, *, causal, key_mask) ->
            outputs`. `None` checks nothing.
    """
    subject = Subject(make_layer, form)
    if reference is None:
        return
    c = CHUNK_SIZE
    lengths = 1, c - 1, c, c + 1, 3 * c + 5
    inputs = [subject.sequence(2, steps) for steps in lengths]
    masks = [np.ones((2, steps), bool) for steps in lengths]
    for mask in masks:
        mask[1, mask.shape[1] // 2 :] = False

    def call(inputs: Any, masks: Any) -> Any:
        return [subject.call(*pair) for pair in zip(inputs, masks, strict=True)]

    outputs = compiled(call)(inputs, masks)
    for x, mask, actual in zip(inputs, masks, outputs, strict=True):
        expected = subject.expected(reference, x, mask)
        assert_close(f"outputs of {x.shape[1]} steps", actual, expected)


def check_streaming(make_layer: MakeLayer, form: str = "causal") -> None:
    """Checks that blocks of any size give what the whole sequence gives.

    A causal layer gives the same outputs; one that is not gives those of the
    last block, which has seen everything. The last state is always the same.
    """
    subject = Subject(make_layer, form)
    if not subject.streams:
        return

    def call(x: Any, state: Any) -> Any:
        return subject.call(x, state=state, return_state=True)

    call = compiled(call)
    steps = 18
    x = subject.sequence(2, steps)
    initial = _float32(as_numpy(subject.initial_state(2)))
    expected, last = call(x, initial)
    for size in (1, 6):
        state, outputs = initial, []
        for start in range(0, steps, size):
            y, state = call(x[:, start : start + size], _float32(state))
            outputs.append(y)
        name = f"blocks of {size}"
        if form == "cross":
            assert_close(f"outputs after {name}", outputs[-1], expected)
        elif form == "causal":
            joined = np.concatenate(outputs, axis=1)
            assert_close(f"outputs of {name}", joined, expected)
        else:
            end = expected[:, -size:]
            assert_close(f"outputs of the last of {name}", outputs[-1], end)
        assert_close(f"last state of {name}", state, last)
    if hasattr(subject.layer, "encode"):

        def encode(x: Any) -> Any:
            state = subject.layer.encode(x)
            other = ops.cast(np.repeat(subject.other, 2, axis=0), "float32")
            return subject.layer(other, initial_state=state), state

        outputs, state = compiled(encode)(x)
        assert_close("outputs from `encode`", outputs, expected)
        assert_close("state from `encode`", state, last)


def _float32(state: Any) -> Any:
    return keras.tree.map_structure(
        lambda x: x.astype("float32") if x.dtype == "float64" else x, state
    )


def check_chunk_size(make_layer: MakeLayer, form: str = "causal") -> None:
    """Checks that the chunk size changes no output and no state."""
    subject = Subject(make_layer, form)
    x = subject.sequence(2, 3 * CHUNK_SIZE + 5)
    sizes = (None, 1, CHUNK_SIZE, CHUNK_SIZE + 3)

    def call(x: Any) -> Any:
        results = []
        for chunk_size in sizes:
            subject.set_chunk_size(chunk_size)
            results.append(subject.call_with_state(x))
        return results

    results = compiled(call)(x)
    for chunk_size, result in zip(sizes, results, strict=True):
        assert_close(f"chunk_size={chunk_size}", result, results[0])


def check_attention_scores(make_layer: MakeLayer, form: str = "causal") -> None:
    """Checks that the attention map, where a layer shows it, is the one used.

    Scores times values, mapped out of the heads, must be the outputs.
    """
    subject = Subject(make_layer, form)
    layer = subject.layer
    if not hasattr(layer, "value_dense"):
        return

    def values(x: Any) -> Any:
        if hasattr(layer, "into_heads"):
            return layer.into_heads(layer.value_dense, x)
        return ops.transpose(layer.value_dense(x), (2, 0, 1, 3))

    def call(x: Any, mask: Any) -> Any:
        query, causal = x, form == "causal"
        if form == "cross":
            query = ops.cast(np.repeat(subject.other, 2, axis=0), "float32")
        outputs, scores = layer(
            query,
            x,
            value_mask=mask,
            use_causal_mask=causal,
            return_attention_scores=True,
        )
        heads = ops.einsum("bhts,hbse->bthe", scores, values(x))
        return outputs, layer.output_dense(heads), scores

    x = subject.sequence(2, 9)
    mask = np.arange(9) < [[9], [5]]
    outputs, expected, scores = compiled(call)(x, mask)
    assert_close("outputs and scores @ values", outputs, expected)
    assert_equal("scores of masked keys", scores[1, :, :, 5:], 0)


def check_padding(make_layer: MakeLayer, form: str = "causal") -> None:
    """Checks that padding changes nothing, wherever it stands.

    Outputs, states and gradients (by the inputs and by the weights) are those
    of the real steps alone. Padding gets no gradient, and nothing is NaN,
    also in a row that has no real step.
    """
    subject = Subject(make_layer, form)
    real, steps = 7, 13
    random = np.random.default_rng(0)
    x = subject.sequence(1, real)
    mask = np.zeros((4, steps), bool)
    mask[0, :real] = True  # padding on the right,
    mask[1, -real:] = True  # on the left,
    mask[2, [0, 1, 4, 5, 7, 10, 12]] = True  # and in the middle
    padded = 3 * random.normal(size=(4, steps, x.shape[-1]))
    padded[:3][mask[:3]] = np.concatenate([x[0]] * 3)
    targets = subject.call(keras.Input(x.shape[1:]), other=_other(subject))
    targets = random.normal(size=targets.shape[1:])

    def loss(x: Any, mask: Any, targets: Any, rows: Any) -> Any:
        outputs, state = subject.call_with_state(x, mask)
        per_row = ops.sum(outputs * targets, axis=(1, 2))
        for name in ("s", "z"):
            if name in state:
                squares = ops.square(state[name])
                axes = tuple(range(1, len(squares.shape)))
                per_row = per_row + 0.1 * ops.sum(squares, axis=axes)
        return ops.sum(per_row * rows), (outputs, state)

    run = compiled(differentiated(loss, subject.layer.trainable_weights))

    def spread(values: Array) -> Array:
        """Puts one value for each real step to the steps of the rows."""
        if form == "cross":
            return np.repeat(values[None], 4, axis=0)
        spread = np.zeros((4, steps, values.shape[-1]))
        spread[:3][mask[:3]] = np.concatenate([values] * 3)
        return spread

    def call(x: Array, mask: Array, targets: Array, rows: Any) -> Any:
        x, targets, rows = (
            np.asarray(value, "float32") for value in (x, targets, rows)
        )
        return run(x, mask, targets, rows)

    alone = call(x, np.ones((1, real), bool), targets[None], [1])
    _, (outputs, state), by_x, by_weights = alone
    together = call(padded, mask, spread(targets), [1, 1, 1, 0])
    _, (all_outputs, all_states), by_all_x, by_all_weights = together
    for row, where in enumerate(("right", "left", "middle")):
        name = f"with padding on the {where}"
        sees = mask[row] if form != "cross" else slice(None)
        assert_close(f"outputs {name}", all_outputs[row, sees], outputs[0])
        for key in set(state) - {"indices"}:
            actual = all_states[key][row]
            assert_close(f"state {key!r} {name}", actual, state[key][0])
        actual = by_all_x[row, mask[row]]
        assert_close(f"gradient by the inputs {name}", actual, by_x[0])
        padding = by_all_x[row, ~mask[row]]
        assert_close(f"gradient by padding {name}", padding, 0 * padding)
    for weight, actual, expected in zip(
        subject.layer.trainable_weights,
        by_all_weights,
        by_weights,
        strict=True,
    ):
        assert_close(f"gradient by {weight.path}", actual, 3 * expected)
    empty = call(padded, mask, spread(targets) + 1, [1, 1, 1, 1])
    assert_finite("results with a row that has no real step", empty)


def _other(subject: Subject) -> Any:
    return keras.Input(subject.other.shape[1:])


def check_causality(make_layer: MakeLayer, form: str = "causal") -> None:
    """Checks that a step changes no bit of an earlier output of a causal layer.

    It must change its own.
    """
    if form != "causal":
        return
    subject = Subject(make_layer, form)
    call = compiled(lambda x: subject.call(x))
    x = subject.sequence(1, 3 * CHUNK_SIZE + 5)
    expected = call(x)
    for step in (1, CHUNK_SIZE - 1, CHUNK_SIZE, x.shape[1] - 1):
        changed = x.copy()
        changed[:, step] = 3 - changed[:, step]
        outputs = call(changed)
        assert_equal(
            f"outputs before the changed step {step}",
            outputs[:, :step],
            expected[:, :step],
        )
        if np.array_equal(outputs[:, step], expected[:, step]):
            raise AssertionError(f"Step {step} does not see itself.")
