import numpy as np
import pytest
from attention_bounds import bounds
from attention_fuzz_test import call, cotangents, problem_of
from cases import GATES, one_row, rounded
from runs import check

from keras_rfa.testing import linear_attention_reference

pytestmark = pytest.mark.usefixtures("quick_compilation")

STEPS = 16_384


@pytest.mark.parametrize(
    ("form", "gates"),
    [
        ("bidirectional", None),
        ("causal", None),
        ("gated", "moderate"),
        ("gated", "low, then high"),
        ("two_sided", "open"),
    ],
)
def test_16k_tokens_in_half_precision(form, gates):
    """Some outputs are within their bounds, and all gradients are finite."""
    program = one_row(
        form, STEPS, width=8, value_width=4, dtype="float16", masked=True
    )
    random = np.random.default_rng(0)
    rows = 1, STEPS, 1
    arrays = {
        "query_features": np.abs(random.normal(size=(*rows, 8))),
        "key_features": np.abs(random.normal(size=(*rows, 8))),
        "value": random.normal(size=(*rows, 4)),
    }
    arrays = {name: rounded(x, "float16") for name, x in arrays.items()}
    if gates is not None:
        logits = GATES[gates](random, rows, -80, 9)
        arrays["gate_logits"] = logits.astype("float32")
    arrays["key_mask"] = random.random(rows[:2]) < 0.9
    actual, gradients = call(program, arrays, cotangents(program, arrays))
    taken = np.unique([0, 1, STEPS - 1, *random.integers(STEPS, size=40)])
    expected, _ = bounds(problem_of(program, arrays), rows=taken)
    output, state = linear_attention_reference(
        **arrays, causal=program.causal, epsilon=program.epsilon
    )
    expected["output"].value = output[:, taken]
    check("output", actual["output"][:, taken], expected["output"], "float16")
    for name in actual.keys() - {"output"}:
        expected[name].value = state[name]
        check(f"state {name!r}", actual[name], expected[name])
    for name, x in gradients.items():
        assert np.all(np.isfinite(x)), f"gradient by {name}"
