"""The promises on training, and on long sequences."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_rfa.testing.assertions import (
    assert_finite,
)
from keras_rfa.testing.backends import (
    as_numpy,
    compiled,
    differentiated,
    operations,
    peak_memory,
)
from keras_rfa.testing.reference import attention_reference
from keras_rfa.testing.subject import (
    CHUNK_SIZE,
    MakeLayer,
    Reference,
    Subject,
    dtype_policy,
)

Array = Any

LONG = 16384
# The largest relative error, |actual - expected| / |expected|.
ERROR_OF_POLICY = {
    "float32": 1e-4,
    "mixed_float16": 5e-3,
    "mixed_bfloat16": 2e-2,
}


def check_fit(make_layer: MakeLayer, form: str = "causal") -> None:
    """Checks that `fit` compiles and trains every weight of a model.

    There is a trainable layer on each side, and more chunks than are combined
    at once. XLA compiles it on TensorFlow and JAX.
    """
    subject = Subject(make_layer, form)
    steps = 40 * CHUNK_SIZE
    model = subject.model(steps)
    xla = keras.backend.backend() != "torch"
    model.compile(keras.optimizers.Adam(1e-2), "mse", jit_compile=xla)
    inputs = [subject.sequence(4, steps), np.repeat(subject.other, 4, axis=0)]
    shape = (4, *model.output_shape[1:])
    targets = np.random.default_rng(0).normal(size=shape)
    before = as_numpy(model.trainable_weights)
    history = model.fit(inputs, targets, batch_size=2, epochs=1, verbose=0)
    assert_finite("loss", history.history["loss"])
    for weight, old in zip(model.trainable_weights, before, strict=True):
        new = as_numpy(weight)
        assert_finite(weight.path, new)
        if np.array_equal(new, old):
            raise AssertionError(f"Training has not changed {weight.path}.")


def check_graph_size(make_layer: MakeLayer, form: str = "causal") -> None:
    """Checks that the number of operations does not grow with the steps.

    States between chunks are combined in blocks, and blocks in blocks: only
    each further level, 32 times the steps, adds some.
    """
    subject = Subject(make_layer, form)
    program = _training_step(subject)
    few, many, most = (
        operations(program, subject.sequence(1, chunks * CHUNK_SIZE))[0]
        for chunks in (160, 320, 1280)
    )
    if few != many or most > 1.5 * many:
        raise AssertionError(
            f"160 chunks take {few} operations, 320 chunks {many} and 1280 "
            f"chunks {most}."
        )


def check_linear_growth(make_layer: MakeLayer, form: str = "causal") -> None:
    """Checks that 4 times the steps take about 4 times the memory.

    That is the memory of a training step, in the measure of `peak_memory`.
    """
    subject = Subject(make_layer, form)
    program = _training_step(subject)
    few, many = (
        peak_memory(program, subject.sequence(1, chunks * CHUNK_SIZE))
        for chunks in (128, 512)
    )
    if not many < 4.6 * few:
        raise AssertionError(
            f"4 times the steps take {many / few:.2f} times the memory: "
            f"{many} bytes instead of {few}."
        )


def _training_step(subject: Subject) -> Callable[..., Any]:
    def loss(x: Any) -> Any:
        outputs = subject.call(x, training=True)
        return ops.mean(ops.square(ops.cast(outputs, "float32"))), outputs

    return differentiated(loss, subject.layer.trainable_weights)


def check_precision(
    make_layer: MakeLayer,
    form: str = "causal",
    reference: Reference | None = attention_reference,
    steps: int = LONG,
) -> None:
    """Checks long sequences in single and half precision.

    Outputs and gradients are finite. The relative error of the outputs, in
    the Euclidean norm, is at most 1e-4 in float32, 5e-3 in mixed_float16 and
    2e-2 in mixed_bfloat16.

    Args:
        make_layer: as in `check_reference`.
        form: as in `check_reference`.
        reference: as in `check_reference`. Where it is `None`, outputs are
            compared with those in float32.
        steps: int. Length of the sequence.
    """
    expected = None
    for policy, allowed in ERROR_OF_POLICY.items():
        with dtype_policy(policy):
            subject = Subject(make_layer, form, chunk_size=None)
        x = subject.sequence(1, steps)

        def loss(x: Any, subject: Subject = subject) -> Any:
            outputs = subject.call(x)
            return ops.mean(ops.square(ops.cast(outputs, "float32"))), outputs

        run = compiled(differentiated(loss, subject.layer.trainable_weights))
        _, outputs, *gradients = run(x)
        assert_finite(f"gradients in {policy}", gradients)
        if expected is None:
            expected = outputs
            if reference is not None:
                expected = subject.expected(reference, x)
        error = np.linalg.norm(outputs - expected) / np.linalg.norm(expected)
        if not error <= allowed:
            raise AssertionError(
                f"Relative error in {policy}: {error:.2e}. Allowed: {allowed}"
            )
