"""Written gradients, against those that the backend derives from a loop."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_rfa.ops.sin_cos import sin_cos
from keras_rfa.ops.sums import all_sums, causal_sums
from keras_rfa.testing.assertions import assert_close
from keras_rfa.testing.backends import as_numpy, as_tensors

HEADS, BATCH, FEATURES, VALUES = 2, 1, 3, 2


def derivatives(function, x):
    """Returns the gradient of a function of a dict, and the gradient of that.

    The second is of the sum of squares of the first.
    """
    x = as_tensors(x)
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        def square(x):
            first = jax.grad(function)(x)
            return sum(ops.sum(ops.square(y)) for y in first.values())

        first, second = jax.jit(
            lambda x: (jax.grad(function)(x), jax.grad(square)(x))
        )(x)
    elif backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                value = function(x)
            first = inner.gradient(value, x)
            total = sum(ops.sum(ops.square(y)) for y in first.values())
        second = outer.gradient(total, x)
    else:
        import torch

        x = {name: y.requires_grad_() for name, y in x.items()}
        first = torch.autograd.grad(
            function(x), list(x.values()), create_graph=True
        )
        total = sum(ops.sum(ops.square(y)) for y in first)
        second = torch.autograd.grad(total, list(x.values()))
        x = {name: y.detach() for name, y in x.items()}
        first = dict(zip(x, (y.detach() for y in first), strict=True))
        second = dict(zip(x, second, strict=True))
    return as_numpy(first), as_numpy(second)


def assert_same_derivatives(function, reference, x):
    actual, expected = derivatives(function, x), derivatives(reference, x)
    for order, ours, theirs in zip((1, 2), actual, expected, strict=True):
        for name in x:
            assert_close(
                f"derivative {order} by {name}", ours[name], theirs[name], 1e-4
            )


def make_inputs(steps, *names):
    random = np.random.default_rng(steps)
    shapes = {
        "q": (HEADS, BATCH, steps, FEATURES),
        "k": (HEADS, BATCH, steps, FEATURES),
        "v": (HEADS, BATCH, steps, VALUES),
        "log_gate": (HEADS, BATCH, steps),
        "initial": (HEADS, BATCH, VALUES, FEATURES),
    }
    inputs = {
        name: random.normal(size=shapes[name]).astype("float32")
        for name in ("q", "k", "v", *names)
    }
    if "log_gate" in names:
        inputs["log_gate"] = -np.abs(inputs["log_gate"])
    return inputs


def weighted(outputs):
    """Returns a scalar on which each entry of the outputs acts differently."""
    total = 0.0
    for output in outputs:
        size = int(np.prod(output.shape))
        weights = ops.reshape(ops.cos(ops.arange(1, size + 1.0)), output.shape)
        total = total + ops.sum(ops.sin(output) * weights)
    return total


def loop(x):
    """Reads `S_t = g_t S_{t-1} + v_t k_tᵀ` at each step, one by one."""
    state = x.get("initial")
    if state is None:
        state = ops.zeros((HEADS, BATCH, VALUES, FEATURES))
    read = []
    for t in range(x["q"].shape[2]):
        if "log_gate" in x:
            state = state * ops.exp(x["log_gate"][:, :, t])[..., None, None]
        state = state + x["v"][:, :, t, :, None] * x["k"][:, :, t, None]
        read.append(ops.sum(state * x["q"][:, :, t, None], axis=-1))
    return ops.stack(read, axis=2), state


def quadratic(x):
    """Reads the same sums from a matrix with an entry for each two steps.

    Its program has one size, where that of the loop grows with the steps.
    """
    log_decay = ops.cumsum(x["log_gate"], axis=2)
    log_weight = log_decay[..., :, None] - log_decay[..., None, :]
    weight = ops.tril(ops.exp(ops.tril(log_weight)))
    scores = weight * ops.einsum("hbtm,hbsm->hbts", x["q"], x["k"])
    read = ops.einsum("hbts,hbse->hbte", scores, x["v"])
    first = ops.einsum("hbem,hbtm->hbte", x["initial"], x["q"])
    read = read + ops.exp(log_decay)[..., None] * first
    state = ops.einsum("hbs,hbse,hbsm->hbem", weight[:, :, -1], x["v"], x["k"])
    last = ops.exp(log_decay[:, :, -1])[..., None, None]
    return read, state + last * x["initial"]


@pytest.mark.parametrize("names", [(), ("initial",), ("log_gate",)])
@pytest.mark.parametrize(("steps", "chunk_size"), [(1, 4), (4, 4), (11, 4)])
def test_causal_sums(steps, chunk_size, names):
    check_causal_sums(steps, chunk_size, names)


def test_causal_sums_of_blocks_of_chunks():
    check_causal_sums(37, 1, ("log_gate", "initial"), quadratic)


def check_causal_sums(steps, chunk_size, names, reference=loop):
    def ours(x):
        outputs = causal_sums(
            x["q"],
            x["k"],
            x["v"],
            x.get("log_gate"),
            x.get("initial"),
            chunk_size,
        )
        return weighted(outputs)

    inputs = make_inputs(steps, *names)
    assert_same_derivatives(ours, lambda x: weighted(reference(x)), inputs)


@pytest.mark.parametrize("names", [(), ("initial",)])
def test_all_sums(names):
    def ours(x):
        return weighted(all_sums(x["q"], x["k"], x["v"], x.get("initial")))

    def plain(x):
        state = ops.einsum("hbte,hbtm->hbem", x["v"], x["k"])
        state = state + x.get("initial", 0)
        return weighted((ops.einsum("hbtm,hbem->hbte", x["q"], state), state))

    assert_same_derivatives(ours, plain, make_inputs(5, *names))


def test_sine_and_cosine():
    def plain(x):
        return weighted((ops.sin(x["angle"]), ops.cos(x["angle"])))

    angle = np.linspace(-9, 9, 101).astype("float32")
    assert_same_derivatives(
        lambda x: weighted(sin_cos(x["angle"])), plain, {"angle": angle}
    )
