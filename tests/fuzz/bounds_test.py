"""Whether the float64 gradients are those of the float64 loop."""

import numpy as np
import pytest
from attention_bounds import bounds
from attention_fuzz_test import cotangents, problem_of
from feature_bounds import Features
from planted_bugs_test import problem

from keras_rfa.testing import feature_map_reference, linear_attention_reference


def central_difference(function, x, direction, step=1e-6):
    above, below = (function(x + s * step * direction) for s in (1, -1))
    return (above - below) / (2 * step)


@pytest.mark.parametrize("epsilon", [1e-3, 1.0])
@pytest.mark.parametrize(
    "form", ["bidirectional", "causal", "gated", "two_sided"]
)
def test_gradients_of_attention(form, epsilon):
    program, arrays = problem(form, epsilon=epsilon)
    by = cotangents(program, arrays)
    _, gradients = bounds(problem_of(program, arrays), by)
    random = np.random.default_rng(0)
    state = arrays.pop("initial_state", {})
    arrays |= {f"initial_{name}": x for name, x in state.items()}
    names = {"initial_s": "s0", "initial_z": "z0", "initial_weight": "c0"}
    for name, x in arrays.items():
        if name == "key_mask":
            continue

        def total(x, name=name):
            given = {**arrays, name: x}
            initial = {
                key: given.pop(f"initial_{key}")
                for key in ("s", "z", "weight")
                if f"initial_{key}" in given
            }
            output, last = linear_attention_reference(
                **given,
                causal=program.causal,
                epsilon=epsilon,
                initial_state=initial or None,
            )
            results = {"output": output, **last}
            return sum((results[key] * by[key]).sum() for key in by)

        direction = random.normal(size=x.shape)
        expected = central_difference(total, x.astype("float64"), direction)
        actual = (gradients[names.get(name, name)].value * direction).sum()
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("kind", ["gaussian", "arccos", "positive", "elu"])
def test_gradients_of_feature_maps(kind, normalize):
    random = np.random.default_rng(0)
    x = random.normal(size=(2, 3, 2, 4))
    projection = random.normal(size=(2, 5, 4))
    scale = random.uniform(0.5, 1, size=(2, 4))
    by = random.normal(size=feature_map_reference(x, projection, kind).shape)
    gradients = Features(
        x, projection, scale if kind != "elu" else None, kind, normalize
    ).gradients(by)

    def total(x, scale):
        features = feature_map_reference(x, projection, kind, normalize, scale)
        return (features * by).sum()

    direction = random.normal(size=x.shape)
    expected = central_difference(lambda x: total(x, scale), x, direction)
    actual = (gradients["x"].value * direction).sum()
    np.testing.assert_allclose(actual, expected, rtol=1e-6)
    if kind != "elu":
        direction = random.normal(size=scale.shape)
        expected = central_difference(lambda s: total(x, s), scale, direction)
        actual = (gradients["scale"].value * direction).sum()
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
