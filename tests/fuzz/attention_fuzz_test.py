import numpy as np
import pytest
from attention_bounds import bounds
from attention_problem import Problem
from cases import attention_arrays, attention_calls, calls
from hypothesis import given
from keras import ops
from runs import check, run

from keras_rfa.ops import encode_state, linear_attention, read_state
from keras_rfa.testing import linear_attention_reference

pytestmark = pytest.mark.usefixtures("quick_compilation")

SUMS = ("s", "z", "weight")


def attend(program, x, others):
    """Calls one form; returns its outputs, times cotangents and as they are."""
    state = None
    if program.continues:
        state = {name: x[f"initial_{name}"] for name in SUMS}
    q, k, v = (
        ops.cast(x[name], program.dtype)
        for name in ("query_features", "key_features", "value")
    )
    given = {
        "gate_logits": x.get("gate_logits"),
        "key_weight": x.get("key_weight"),
        "key_mask": others.get("key_mask"),
    }
    options = {"epsilon": program.epsilon, "chunk_size": program.chunk_size}

    def call(q, k, v, given, state):
        return linear_attention(
            q,
            k,
            v,
            **given,
            **options,
            causal=program.causal,
            initial_state=state,
            return_state=True,
        )

    if program.form == "encoded":
        given.pop("gate_logits")
        state = encode_state(k, v, **given, initial_state=state)
        output = read_state(q, state, program.epsilon)
    elif program.form.endswith("continued"):
        half = program.keys // 2
        outputs = []
        for block in (slice(half), slice(half, None)):
            of_block = {
                name: None if y is None else y[:, block]
                for name, y in given.items()
            }
            output, state = call(
                q[:, block], k[:, block], v[:, block], of_block, state
            )
            outputs.append(output)
        output = ops.concatenate(outputs, axis=1)
    elif program.has_state:
        output, state = call(q, k, v, given, state)
    else:
        output = linear_attention(q, k, v, **given, **options)
    results = {"output": output}
    if program.has_state:
        results.update(state)
    total = sum(
        ops.sum(ops.cast(results[name], "float32") * others[f"by_{name}"])
        for name in results
    )
    return total, results


def cotangents(program, arrays):
    """Draws gradients by outputs that every dtype can hold."""
    random = np.random.default_rng(program.keys)
    b, t, h, m = arrays["query_features"].shape
    e = arrays["value"].shape[-1]
    shapes = {"output": (b, t, h, e)}
    if program.has_state:
        shapes |= {"s": (b, h, m, e), "z": (b, h, m), "weight": (b, h)}
    return {
        name: random.integers(-8, 9, size=shape).astype("float32") / 8
        for name, shape in shapes.items()
    }


def call(program, arrays, by):
    """Returns outputs and gradients of a call on the backend."""
    arrays = dict(arrays)
    others = {f"by_{name}": x for name, x in by.items()}
    if program.masked:
        others["key_mask"] = arrays.pop("key_mask")
    for name, x in arrays.pop("initial_state", {}).items():
        arrays[f"initial_{name}"] = x
    return run(attend, program, arrays, others)


def problem_of(program, arrays):
    double = {
        name: x if isinstance(x, dict) else x.astype("float64")
        for name, x in arrays.items()
    }
    state = double.get("initial_state")
    if state is not None:
        state = {name: x.astype("float64") for name, x in state.items()}
    return Problem(
        double["query_features"],
        double["key_features"],
        double["value"],
        causal=program.causal,
        epsilon=program.epsilon,
        chunk_size=program.chunk_size or 128,
        gate_logits=double.get("gate_logits"),
        key_mask=arrays.get("key_mask"),
        key_weight=double.get("key_weight"),
        state=state,
    )


@calls(4)
@given(attention_calls())
def test_attention(drawn):
    """Outputs, states and gradients are those of float64 within their bounds.

    The values come from a loop over steps. The bound of an output is that of
    a quotient, `(δN + |o| δF) / F`: the condition of its numerator `N`,
    `Σ |w| |φ(q)|·|φ(k)| |v|`, and that of its floored denominator `F`, each
    times `γ(m + s)` and the errors of the decays, over the least that `F` may
    be. See `attention_bounds`.
    """
    program, numbers = drawn
    check_call(program, attention_arrays(program, numbers))


def check_call(program, arrays):
    """Raises unless what the backend returns is within its bounds."""
    by = cotangents(program, arrays)
    actual, gradients = call(program, arrays, by)
    expected, expected_gradients = bounds(problem_of(program, arrays), by)
    if program.keys:
        output, state = linear_attention_reference(
            **arrays, causal=program.causal, epsilon=program.epsilon
        )
        for name, x in {"output": output, **state}.items():
            bound = expected[name]
            off = np.abs(x - bound.value)
            assert np.all(off <= 1e-3 * bound.error + 1e-30), name
            bound.value = x
    output = actual.pop("output")
    dtype = "float32" if program.form == "encoded" else program.dtype
    check("output", output, expected["output"], dtype)
    for name, x in actual.items():
        check(f"state {name!r}", x, expected[name])
    names = {"initial_s": "s0", "initial_z": "z0", "initial_weight": "c0"}
    for name, x in gradients.items():
        half = name in ("query_features", "key_features", "value")
        check(
            f"gradient by {name}",
            x,
            expected_gradients[names.get(name, name)],
            program.dtype if half else "float32",
        )
