import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_rfa.ops import (
    attention_weights,
    encode_state,
    linear_attention,
    read_state,
    zero_state,
)
from keras_rfa.testing import (
    as_numpy,
    as_tensors,
    assert_close,
    assert_finite,
    compiled,
    differentiated,
    linear_attention_reference,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")


@st.composite
def problems(draw):
    """Inputs of every form, as a pair of arrays and options."""
    b, h, m, e = (draw(st.sampled_from(sizes)) for sizes in ((1, 2),) * 4)
    causal, gated = draw(st.booleans()), draw(st.booleans())
    chunk_size = draw(st.sampled_from([1, 2, 4, 7]))
    s = draw(st.integers(1, 3 * chunk_size + 2))
    t = s if causal or gated else draw(st.integers(1, 9))
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    arrays = {
        "query_features": random.normal(size=(b, t, h, m)),
        "key_features": random.normal(size=(b, s, h, m)),
        "value": random.normal(size=(b, s, h, e)),
    }
    if draw(st.booleans()):  # maps whose features are positive
        arrays["query_features"] = np.abs(arrays["query_features"])
        arrays["key_features"] = np.abs(arrays["key_features"])
    if gated:
        logits = st.floats(-30, 30, width=32)
        low, high = sorted((draw(logits), draw(logits)))
        spread = (high - low) * random.random(size=(b, s, h))
        arrays["gate_logits"] = low + spread
    if (causal or not gated) and draw(st.booleans()):
        arrays["initial_state"] = {
            "s": random.normal(size=(b, h, m, e)),
            "z": np.abs(random.normal(size=(b, h, m))),
            "weight": random.uniform(1, 3, size=(b, h)),
        }
    arrays = keras.tree.map_structure(lambda x: x.astype("float32"), arrays)
    if draw(st.booleans()):
        weight = random.uniform(0, 2, size=(b, s, h))
        arrays["key_weight"] = weight.astype("float32")
    if draw(st.booleans()):
        share = draw(st.sampled_from([0.0, 0.5, 1.0]))
        arrays["key_mask"] = random.random((b, s)) < share
    options = {"causal": causal, "epsilon": draw(st.sampled_from([0.1, 1.0]))}
    return arrays, options, chunk_size


@given(problems())
def test_against_a_loop_over_steps(problem):
    arrays, options, chunk_size = problem
    has_state = options["causal"] or "gate_logits" not in arrays

    def call(arrays):
        return linear_attention(
            **arrays,
            **options,
            chunk_size=chunk_size,
            return_state=has_state,
        )

    expected, last = linear_attention_reference(**arrays, **options)
    actual = compiled(call)(arrays)
    if has_state:
        actual, state = actual
        assert_close("state", state, last)
    assert_close("output", actual, expected)


@given(problems())
def test_against_the_quadratic_form(problem):
    arrays, options, chunk_size = problem
    arrays.pop("initial_state", None)
    value = arrays.pop("value")

    def linear(value, arrays):
        return linear_attention(
            value=value, **arrays, **options, chunk_size=chunk_size
        )

    def quadratic(value, arrays):
        weights = attention_weights(**arrays, **options)
        return ops.einsum("bhts,bshe->bthe", weights, value)

    outputs, scores = compiled(lambda *x: (linear(*x), quadratic(*x)))(
        value, arrays
    )
    assert_close("output", outputs, scores)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("gate", "argument"),
    [
        (gate, argument)
        for gate in (None, 0.0, -30.0, 30.0)
        for argument in ("query", "key", "value", "gate")
        if (gate, argument) != (None, "gate")
    ],
)
def test_gradients_are_those_of_the_quadratic_form(causal, gate, argument):
    random = np.random.default_rng(0)
    shape = (2, 11, 2, 3)
    arrays = {
        "query": np.abs(random.normal(size=shape)),
        "key": np.abs(random.normal(size=shape)),
        "value": random.normal(size=shape),
    }
    if gate is not None:
        arrays["gate"] = gate + random.normal(size=shape[:3])
    arrays = {name: x.astype("float32") for name, x in arrays.items()}
    mask = random.random(shape[:2]) < 0.7
    mask[1, 4:] = False

    def gradient(attend):
        def total(x, arrays, mask):
            arrays = {**arrays, argument: x}
            outputs = attend(arrays, mask)
            return ops.sum(ops.sin(outputs)), outputs

        return differentiated(total, [])

    def linear(x, mask):
        return linear_attention(
            x["query"],
            x["key"],
            x["value"],
            causal=causal,
            gate_logits=x.get("gate"),
            key_mask=mask,
            chunk_size=4,
        )

    def quadratic(x, mask):
        weights = attention_weights(
            x["query"],
            x["key"],
            causal=causal,
            gate_logits=x.get("gate"),
            key_mask=mask,
        )
        return ops.einsum("bhts,bshe->bthe", weights, x["value"])

    actual, expected = compiled(
        lambda *x: (gradient(linear)(*x)[2], gradient(quadratic)(*x)[2])
    )(arrays[argument], arrays, mask)
    assert_finite("gradient", actual)
    assert_close("gradient", actual, expected)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shut", [-5, -80, -1e5])
def test_shut_gates_cost_open_ones_no_digits(shut, causal):
    random = np.random.default_rng(0)
    steps = 200
    x = np.abs(random.normal(size=(1, steps, 2, 4))).astype("float32")
    gate_logits = random.normal(size=x.shape[:3]).astype("float32") / 10
    gate_logits += np.where(np.arange(steps) % 128 < 100, shut, 6)[:, None]

    def call(x, gate_logits):
        return linear_attention(x, x, x, causal=causal, gate_logits=gate_logits)

    actual = compiled(call)(x, gate_logits)
    expected, _ = linear_attention_reference(
        x, x, x, causal=causal, gate_logits=gate_logits
    )
    assert_close("output", actual, expected)


def features(steps=5, width=4, dtype="float32"):
    random = np.random.default_rng(steps)
    return np.abs(random.normal(size=(2, steps, 3, width))).astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_outputs_are_in_the_dtype_of_values_and_states_in_float32(dtype):
    value = ops.cast(features(), dtype)
    dtype = value.dtype  # JAX has no float64 unless told so
    x = as_tensors(features())
    output, state = linear_attention(
        x, x, value, causal=True, return_state=True
    )
    assert output.dtype == dtype
    for entry in state.values():
        assert keras.backend.standardize_dtype(entry.dtype) == "float32"


def test_a_state_can_be_encoded_and_read():
    def call(q, k):
        state = encode_state(k[:, :3], k[:, :3])
        state = encode_state(k[:, 3:], k[:, 3:], initial_state=state)
        return read_state(q, state), linear_attention(q, k, k)

    actual, expected = compiled(call)(features(7), features(5))
    assert_close("output", actual, expected)


def test_a_state_of_a_layer_can_be_read():
    x = as_tensors(features())
    state = {**encode_state(x, x), "indices": ops.zeros((3,), "int32")}
    expected = as_numpy(read_state(x, encode_state(x, x)))
    assert_close("output", as_numpy(read_state(x, state)), expected)
    with pytest.raises(ValueError, match="`state` must be a dict"):
        read_state(x, x)


def test_no_key_gives_zero():
    x = features()
    mask = np.zeros((2, 5), bool)

    def call(x, mask):
        return [
            linear_attention(x, x, x, causal=causal, key_mask=mask)
            for causal in (True, False)
        ] + [read_state(x, zero_state(2, 3, 4, 4))]

    for output in compiled(call)(x, mask):
        assert not np.any(output)


@pytest.mark.parametrize("gate", [False, True])
@pytest.mark.parametrize("causal", [True, False])
def test_no_step_gives_no_output(causal, gate):
    x = as_tensors(features(0))
    gate_logits = x[..., 0] if gate else None
    output = linear_attention(x, x, x, causal=causal, gate_logits=gate_logits)
    assert output.shape == x.shape


STATE = {"s": (2, 3, 4, 4), "z": (2, 3, 4), "weight": (2, 3)}


def state(dtype="float32", **shapes):
    return {
        name: ops.zeros(shape, dtype=dtype)
        for name, shape in {**STATE, **shapes}.items()
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key_features": np.zeros((2, 5, 3))}, r"key_features.shape=\(2, 5"),
        ({"value": np.zeros((2, 6, 3, 4))}, r"value.shape=\(2, 6, 3, 4\)"),
        ({"query_features": features(5, 6)}, r"query_features.shape=\(2, 5, 3"),
        ({"key_mask": np.ones((2, 4))}, r"key_mask.shape=\(2, 4\)"),
        ({"gate_logits": np.ones((2, 5, 2))}, r"gate_logits.shape=\(2, 5, 2"),
        (
            {"query_features": features(6), "causal": True},
            r"Received: query_features.shape=\(2, 6",
        ),
        (
            {"query_features": features(6), "gate_logits": features()[..., 0]},
            r"Received: query_features.shape=\(2, 6",
        ),
        ({"epsilon": -1.0}, "Received: epsilon=-1.0"),
        ({"chunk_size": 0}, "Received: chunk_size=0"),
        (
            {"gate_logits": features()[..., 0], "return_state": True},
            "can neither take nor return a state",
        ),
        (
            {"gate_logits": features()[..., 0], "initial_state": state()},
            "can neither take nor return a state",
        ),
        ({"initial_state": {"s": 0}}, r"Received: \['s'\]"),
        ({"initial_state": (0, 0, 0)}, "Received: <class 'tuple'>"),
        ({"initial_state": state(extra=())}, "Received: .*'extra'"),
        (
            {"initial_state": state(z=(2, 3, 5))},
            r"initial_state\['z'\].shape=\(2, 3, 5\)",
        ),
        ({"initial_state": state("float16")}, "Received: dtype=float16"),
    ],
)
def test_errors(arguments, message):
    defaults = dict.fromkeys(
        ("query_features", "key_features", "value"), features()
    )
    with pytest.raises(ValueError, match=message):
        linear_attention(**{**defaults, **arguments})


def test_errors_of_states():
    with pytest.raises(ValueError, match=r"query_features.shape=\(2, 5, 3, 9"):
        read_state(features(5, 9), state())
    with pytest.raises(ValueError, match=r"value.shape=\(2, 6, 3, 4\)"):
        encode_state(features(5), features(6))
    with pytest.raises(ValueError, match="Received: dtype=float16"):
        encode_state(features(5), features(5), initial_state=state("float16"))
