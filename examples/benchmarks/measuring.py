"""Programs that XLA compiles, and the time and memory that they take."""

import os
import pathlib
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras

BACKEND = keras.backend.backend()
WORKS = (
    "attention, forward",
    "attention, gradient",
    "classifier, training step",
)
PLANS = tempfile.TemporaryDirectory()  # of TensorFlow's XLA


def median_seconds(
    programs: Mapping[Any, Callable[[], None]], runs: int
) -> dict[Any, float]:
    """Runs programs that have run before, all in turn, several times."""
    seconds: dict[Any, list[float]] = {name: [] for name in programs}
    for _ in range(runs):
        for name, run in programs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(x) for name, x in seconds.items()}


def compile_program(
    layer: Any, inputs: Any, options: dict[str, bool], work: str
) -> tuple[Callable[[], None], int]:
    """Compiles one of the `WORKS` for a layer or a model with an optimizer.

    Returns:
        A function that has run once, and the bytes that XLA plans for its
        temporaries; on TensorFlow 0 unless `dump_plans` was called before.
    """
    compiler = compile_jax if BACKEND == "jax" else compile_tensorflow
    return compiler(layer, inputs, options, work)


def compile_jax(
    layer: Any, inputs: Any, options: dict[str, bool], work: str
) -> Any:
    """Compiles by JAX, which tells what XLA plans for temporaries."""
    import jax

    training = "forward" not in work

    def forward(weights: Any, others: Any, *inputs: Any) -> Any:
        outputs, _ = layer.stateless_call(
            weights, others, *inputs, training=training, **options
        )
        return outputs

    def loss(*arguments: Any) -> Any:
        return keras.ops.sum(keras.ops.square(forward(*arguments)))

    def gradient(weights: Any, others: Any, *inputs: Any) -> Any:
        return jax.grad(loss, (0, 2))(weights, others, *inputs)

    def step(weights: Any, others: Any, slots: Any, *inputs: Any) -> Any:
        gradients = jax.grad(loss)(weights, others, *inputs)
        return layer.optimizer.stateless_apply(slots, gradients, weights)

    weights = [v.value for v in layer.trainable_variables]
    others = [v.value for v in layer.non_trainable_variables]
    arguments = [weights, others, *(keras.ops.array(x) for x in inputs)]
    function = gradient if training else forward
    if "step" in work:
        arguments.insert(2, [v.value for v in layer.optimizer.variables])
        function = step
    compiled = jax.jit(function).lower(*arguments).compile()
    memory = compiled.memory_analysis().temp_size_in_bytes

    def run() -> None:
        jax.block_until_ready(compiled(*arguments))

    run()
    return run, memory


def compile_tensorflow(
    layer: Any, inputs: Any, options: dict[str, bool], work: str
) -> Any:
    """Compiles by TensorFlow with XLA, which writes what it plans to files."""
    import tensorflow as tf

    inputs = [tf.constant(x) for x in inputs]

    @tf.function(jit_compile=True)
    def program(*inputs: Any) -> Any:
        if "forward" in work:
            return layer(*inputs, training=False, **options)
        sources = list(layer.trainable_variables)
        if inputs[0].dtype.is_floating:
            sources.append(inputs[0])
        with tf.GradientTape() as tape:
            tape.watch(inputs[0])
            outputs = layer(*inputs, training=True, **options)
            loss = tf.reduce_sum(tf.square(outputs))
        gradients = tape.gradient(loss, sources)
        if "step" in work:
            layer.optimizer.apply(gradients, layer.trainable_variables)
            return loss
        return gradients

    def run() -> None:
        outputs = program(*inputs)
        tf.nest.map_structure(lambda x: x.numpy(), tf.nest.flatten(outputs)[0])

    run()
    return run, planned_temporaries()


def dump_plans() -> None:
    """Makes XLA write what it plans, on TensorFlow, which does not tell.

    It must be called before anything is compiled.
    """
    if BACKEND != "tensorflow":
        return
    flags = f" --xla_dump_to={PLANS.name} --xla_dump_hlo_as_text"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + flags


def planned_temporaries() -> int:
    """Returns the bytes of temporaries of the program compiled last."""
    planned = [0]
    for path in pathlib.Path(PLANS.name).iterdir():
        if path.name.endswith("buffer-assignment.txt"):
            sizes = re.findall(
                r"size (\d+), preallocated-temp", path.read_text()
            )
            planned.append(sum(map(int, sizes)))
        path.unlink()
    return max(planned)


def matrix_product_speed(size: int = 2048) -> float:
    """Measures the backend's own matrix product, in GFLOP/s."""
    x = keras.random.normal((size, size))
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        keras.ops.convert_to_numpy(keras.ops.matmul(x, x))
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds) / 1e9
