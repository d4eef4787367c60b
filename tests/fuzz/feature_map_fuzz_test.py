from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import DTYPES, calls, drawn_program, rounded
from feature_bounds import Features
from hypothesis import given
from hypothesis import strategies as st
from keras import ops
from runs import check, run

from keras_rfa.ops import feature_map
from keras_rfa.testing import feature_map_reference

pytestmark = pytest.mark.usefixtures("quick_compilation")

KINDS = ("gaussian", "arccos", "positive", "elu")


@dataclass(frozen=True)
class Program:
    kind: str
    normalize: bool
    shape: tuple[int, int, int, int]
    num_features: int
    dtype: str
    scaled: bool


def program(choose: Any) -> Program:
    kind = choose(KINDS)
    shape = tuple(choose((1, 2, 5)) for _ in range(3))
    return Program(
        kind=kind,
        normalize=choose((True, False)),
        shape=(*shape, choose((1, 2, 8, 33))),
        num_features=choose((1, 3, 32)),
        dtype=choose(DTYPES),
        scaled=kind != "elu" and choose((True, False)),
    )


@st.composite
def feature_calls(draw):
    """Draws a program and its arrays."""
    key = draw(drawn_program(program))
    random = np.random.default_rng(draw(st.integers(0, 2**31)))
    x = random.normal(size=key.shape)
    _, _, heads, width = key.shape
    size = draw(st.sampled_from((1.0, 1e4, 1e-20, 0.0, "many", "shift")))
    if size == "many":
        x = x * 10.0 ** random.integers(-20, 4, size=x.shape)
    elif size == "shift":
        x = x - 10
    else:
        x = size * x
    scale = np.ones((heads, width))
    if key.scaled:
        scale = random.uniform(
            0.1, draw(st.sampled_from((1.0, 8.0))), (heads, width)
        )
    if key.kind == "gaussian" and not key.normalize:
        # Its factor exp(|σx|²/2) is a number of float32 up to here.
        length = np.linalg.norm(x * scale, axis=-1, keepdims=True)
        x = x * np.minimum(1, 9 / np.maximum(length, 1e-30))
    arrays = {"x": rounded(x, key.dtype)}
    if key.scaled:
        arrays["scale"] = scale.astype("float32")
    projection = random.normal(size=(heads, key.num_features, width))
    return key, arrays, projection.astype("float32")


def features(key, x, others):
    result = feature_map(
        ops.cast(x["x"], key.dtype),
        None if key.kind == "elu" else others["projection"],
        key.kind,
        key.normalize,
        x.get("scale"),
    )
    return ops.sum(result * others["by_features"]), result


@calls(2)
@given(feature_calls())
def test_feature_map(drawn):
    """Features and gradients are those of float64 within their bounds.

    See `feature_bounds`: the error of each angle is that of its sum of
    magnitudes, and what follows multiplies it with a derivative.
    """
    key, arrays, projection = drawn
    x, scale = arrays["x"], arrays.get("scale")
    expected = Features(x, projection, scale, key.kind, key.normalize)
    reference = feature_map_reference(
        x, projection, key.kind, key.normalize, scale
    )
    off = np.abs(reference - expected.features.value)
    assert np.all(off <= 1e-3 * expected.features.error + 1e-30)
    random = np.random.default_rng(0)
    by = random.integers(-8, 9, size=reference.shape) / 8
    others = {"projection": projection, "by_features": by.astype("float32")}
    actual, gradients = run(features, key, arrays, others)
    check("features", actual, expected.features)
    bounds = expected.gradients(by)
    check("gradient by x", gradients["x"], bounds["x"], key.dtype)
    if key.scaled:
        check("gradient by the scale", gradients["scale"], bounds["scale"])
