"""What fuzzing found, each at its smallest."""

import numpy as np
import pytest
from attention_fuzz_test import check_call
from cases import one_row
from feature_bounds import Features
from keras import ops
from runs import check, run

from keras_rfa.ops import feature_map

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("form", ["gated", "two_sided"])
@pytest.mark.parametrize("logit", [30, 50, 76, 80, 1e4])
def test_gates_may_let_next_to_nothing_in(form, logit):
    """The gradient by a denominator is divided by what has entered."""
    x = np.full((1, 3, 1, 1), 0.5, "float32")
    arrays = {
        "query_features": x,
        "key_features": x,
        "value": 1e4 * x,
        "gate_logits": np.full((1, 3, 1), logit, "float32"),
    }
    check_call(one_row(form, 3, epsilon=1e-6), arrays)


@pytest.mark.parametrize("form", ["bidirectional", "causal"])
def test_denominators_may_be_large(form):
    """Their squares, which are in a gradient, need not be in float32."""
    random = np.random.default_rng(0)
    x = random.uniform(0.5, 1, size=(2, 1, 3, 1, 1)).astype("float32")
    arrays = {
        "query_features": 1e4 * x[0],
        "key_features": 1e4 * x[1],
        "value": random.normal(size=(1, 3, 1, 1)).astype("float32"),
        "key_weight": np.full((1, 3, 1), 1e13, "float32"),
    }
    check_call(one_row(form, 3, weighted=True), arrays)


def elu(key, x, others):
    features = feature_map(x["x"], kind=key)
    return ops.sum(features * others["by_features"]), features


def test_small_features_keep_their_digits():
    """`elu(x) + 1` is `exp(x)` below 0."""
    x = np.array([-80, -20, -10, -1, -1e-3, 0, 1e-3, 1, 1e4], "float32")
    x = x.reshape((1, 1, 1, -1))
    expected = Features(x, None, None, "elu", True)
    by = np.ones_like(x)
    features, gradients = run(elu, "elu", {"x": x}, {"by_features": by})
    check("features", features, expected.features)
    check("gradient", gradients["x"], expected.gradients(by)["x"])
