"""Whether the bounds would see a bug: each is planted, and must be found.

They are planted in the calls, not in the code, which may be written anew. The
problem is a usual one. A bound that lets one of these pass is no bound.
"""

import attention_fuzz_test as fuzz
import numpy as np
import pytest
import runs
from cases import FEATURES, Program
from keras import ops

from keras_rfa.ops import linear_attention

pytestmark = pytest.mark.usefixtures("quick_compilation")


def problem(form, dtype="float32", epsilon=1e-3, features="positive"):
    """Returns a program and its arrays, with all options that the form has."""
    random = np.random.default_rng(0)
    program = Program(
        form=form,
        batch=2,
        heads=2,
        width=4,
        value_width=3,
        queries=21,
        keys=21,
        chunk_size=8,
        dtype=dtype,
        epsilon=epsilon,
        masked=True,
        weighted=True,
        continues=form != "two_sided",
    )
    arrays = {
        "query_features": FEATURES[features](random, (2, 21, 2, 4)),
        "key_features": FEATURES[features](random, (2, 21, 2, 4)),
        "value": random.normal(size=(2, 21, 2, 3)),
        "key_weight": random.uniform(0.5, 1, size=(2, 21, 2)),
    }
    if program.gated:
        arrays["gate_logits"] = random.normal(size=(2, 21, 2)) + 1
    arrays = {name: x.astype("float32") for name, x in arrays.items()}
    arrays["key_mask"] = random.random((2, 21)) < 0.7
    if program.continues:
        arrays["initial_state"] = {
            "s": random.normal(size=(2, 2, 4, 3)).astype("float32"),
            "z": random.uniform(1, 2, size=(2, 2, 4)).astype("float32"),
            "weight": np.ones((2, 2), "float32"),
        }
    return program, arrays


def changed(**changes):
    """Returns `linear_attention` with some arguments replaced.

    A change is a value, or a function of all arguments.
    """

    def attend(q, k, v, **arguments):
        x = {**arguments, "q": q, "k": k, "v": v}
        for name, change in changes.items():
            x[name] = change(x) if callable(change) else change
        return linear_attention(x.pop("q"), x.pop("k"), x.pop("v"), **x)

    return attend


def times_mask(name):
    """Masks one argument alone."""

    def masked(x):
        mask = ops.cast(x["key_mask"], x[name].dtype)
        shape = (*mask.shape, *([1] * (len(x[name].shape) - 2)))
        return x[name] * ops.reshape(mask, shape)

    return masked


def later(name):
    """Gives each step what belongs to the step before it."""
    return lambda x: ops.roll(x[name], 1, axis=1)


def through(dtype, *names):
    """Rounds arguments."""

    def rounded(x):
        return ops.cast(ops.cast(x, dtype), "float32")

    return {name: lambda x, name=name: rounded(x[name]) for name in names}


def no_gradient(name):
    """Stops a gradient."""
    return lambda x: ops.stop_gradient(x[name])


def chunks_that_lose_a_step(q, k, v, *, initial_state, **arguments):
    """Carries all but the last step of a chunk to the next one."""
    outputs, state = [], initial_state
    steps = ("gate_logits", "key_mask", "key_weight")
    size = arguments.pop("chunk_size")
    for start in range(0, k.shape[1], size):

        def attend(end, start=start, state=state):
            block = slice(start, end)
            taken = {
                name: x[:, block] if name in steps and x is not None else x
                for name, x in arguments.items()
            }
            return linear_attention(
                q[:, block],
                k[:, block],
                v[:, block],
                initial_state=state,
                **taken,
            )

        end = min(start + size, k.shape[1])
        outputs.append(attend(end)[0])
        state = attend(end - 1)[1]
    return ops.concatenate(outputs, axis=1), state


def state_in_half_precision(*inputs, **arguments):
    output, state = linear_attention(*inputs, **arguments)
    return output, {
        name: ops.cast(ops.cast(x, "bfloat16"), "float32")
        for name, x in state.items()
    }


def let_in(x):
    """Undoes the factor `1 - g` of what enters."""
    return x["key_weight"] * (1 + ops.exp(x["gate_logits"]))


BUGS = {
    "g and 1 - g swapped": (
        "gated",
        changed(gate_logits=lambda x: -x["gate_logits"]),
    ),
    "no 1 - g": ("gated", changed(key_weight=let_in)),
    "gate of the step before": (
        "gated",
        changed(gate_logits=later("gate_logits")),
    ),
    "gate of the step before, two-sided": (
        "two_sided",
        changed(gate_logits=later("gate_logits")),
    ),
    "one direction": ("two_sided", changed(causal=True)),
    "the own step too late": ("causal", changed(k=later("k"), v=later("v"))),
    "not causal": ("causal", changed(causal=False)),
    "no mask": ("causal", changed(key_mask=None)),
    "mask of values alone": (
        "bidirectional",
        changed(v=times_mask("v"), key_mask=None),
    ),
    "gate goes on at masked steps": (
        "gated",
        changed(key_weight=times_mask("key_weight"), key_mask=None),
    ),
    "no weights": ("causal", changed(key_weight=None)),
    "no initial state": ("causal", changed(initial_state=None)),
    "no floor": ("causal", changed(epsilon=1e-9)),
    "a floor 0.1 % too low": (
        "bidirectional",
        changed(epsilon=lambda x: 0.999 * x["epsilon"]),
    ),
    "chunks that lose a step": ("gated", chunks_that_lose_a_step),
    "chunks that lose a step, no gate": ("causal", chunks_that_lose_a_step),
    "a state in half precision": ("causal", state_in_half_precision),
    "keys in half precision": ("causal", changed(**through("bfloat16", "k"))),
    "gates in half precision": (
        "gated",
        changed(**through("bfloat16", "gate_logits")),
    ),
    "no gradient by the gate": (
        "gated",
        changed(gate_logits=no_gradient("gate_logits")),
    ),
    "no gradient by keys": ("two_sided", changed(k=no_gradient("k"))),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug, monkeypatch):
    form, attend = BUGS[bug]
    if "floor" in bug:  # where it binds
        drawn = problem(form, epsilon=1.0, features="signed")
    else:
        drawn = problem(form)
    runs.forget()
    monkeypatch.setattr(fuzz, "linear_attention", attend)
    with pytest.raises(AssertionError, match=r"output|state|gradient"):
        fuzz.check_call(*drawn)
    runs.forget()


@pytest.mark.parametrize("form", sorted({form for form, _ in BUGS.values()}))
def test_without_a_bug_nothing_is_found(form):
    fuzz.check_call(*problem(form))
    fuzz.check_call(*problem(form, epsilon=1.0, features="signed"))
