import functools
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
from attention_bounds import bounds
from attention_problem import Problem
from bounded import UNIT, Bounded, inflated
from cases import DTYPES, MASKS, calls, drawn_program, rounded
from feature_bounds import Features
from hypothesis import given
from hypothesis import strategies as st
from keras import ops
from runs import check, run

from keras_rfa.layers import (
    CrossRandomFeatureAttention,
    GatedRandomFeatureAttention,
    RandomFeatureAttention,
    RandomProjectionPool,
)
from keras_rfa.ops.attention_sums import heads_last

pytestmark = pytest.mark.usefixtures("quick_compilation")

LAYERS = {
    "plain": RandomFeatureAttention,
    "gated": GatedRandomFeatureAttention,
    "cross": CrossRandomFeatureAttention,
}
WIDTH = 6


@dataclass(frozen=True)
class Program:
    layer: str
    feature_map: str
    normalize: bool
    causal: bool
    batch: int
    queries: int
    keys: int
    chunk_size: int
    heads: int
    key_dim: int
    num_features: int
    dtype: str
    masked: bool
    training: bool


def program(choose: Any) -> Program:
    layer = choose(tuple(LAYERS))
    chunk_size = choose((1, 2, 7, 16, 64))
    keys = choose((1, chunk_size + 1, 3 * chunk_size + 5, chunk_size))
    return Program(
        layer=layer,
        feature_map=choose(("gaussian", "arccos", "positive", "elu")),
        normalize=choose((True, False)),
        causal=layer != "cross" and choose((True, False)),
        batch=choose((1, 2)),
        queries=choose((1, 3)) if layer == "cross" else keys,
        keys=keys,
        chunk_size=chunk_size,
        heads=choose((1, 2)),
        key_dim=choose((1, 2, 3, 8)),
        num_features=choose((1, 16)),
        dtype=choose(_dtypes()),
        masked=choose((False, True)),
        training=choose((False, True)),
    )


def _dtypes() -> tuple[str, ...]:
    # XLA may keep more digits of a query than its dtype has: what a layer maps
    # is then not what its dense map returns, by which it is judged here.
    return DTYPES if keras.backend.backend() == "torch" else ("float32",)


@functools.lru_cache(maxsize=512)
def layer_of(key: Program) -> Any:
    """Returns a built layer, which trains with the matrices of inference."""
    sizes = key.heads, key.num_features, key.key_dim
    pool = None
    if key.feature_map != "elu":
        pool = RandomProjectionPool(*sizes, pool_size=1, seed=0)
    policy = key.dtype if key.dtype == "float32" else f"mixed_{key.dtype}"
    layer = LAYERS[key.layer](
        key.heads,
        key.key_dim,
        value_dim=2,
        num_features=key.num_features,
        feature_map=key.feature_map,
        normalize_inputs=key.normalize,
        projection_pool=pool,
        chunk_size=key.chunk_size,
        seed=0,
        dtype=policy,
    )
    shapes = (key.batch, key.queries, WIDTH), (key.batch, key.keys, WIDTH)
    layer.build(*shapes)
    return layer


@dataclass(frozen=True)
class Numbers:
    seed: int
    size: float
    largest_sigma: float
    mask: str


@st.composite
def layer_calls(draw):
    """Draws a program and its numbers."""
    return draw(drawn_program(program, least=8)), Numbers(
        seed=draw(st.integers(0, 2**31)),
        size=draw(st.sampled_from((1.0, 1e4, 1e-20, 0.0))),
        largest_sigma=draw(st.sampled_from((1.0, 8.0))),
        mask=draw(st.sampled_from(tuple(MASKS))),
    )


def layer_arrays(key, numbers):
    """Returns the arrays of inputs and weights, and others."""
    random = np.random.default_rng(numbers.seed)
    queries = numbers.size * random.normal(size=(key.batch, key.queries, WIDTH))
    keys = numbers.size * random.normal(size=(key.batch, key.keys, WIDTH))
    arrays = {
        "query": rounded(queries, key.dtype),
        "value": rounded(keys, key.dtype),
    }
    for variable in layer_of(key).trainable_weights:
        if variable.path.endswith("sigma"):
            array = random.uniform(0.1, numbers.largest_sigma, variable.shape)
        else:
            array = random.normal(size=variable.shape) / WIDTH**0.5
        arrays[variable.path] = array.astype("float32")
    by_output = random.integers(-8, 9, size=queries.shape) / 8
    others = {"by_output": by_output.astype("float32")}
    if key.masked:
        shape = key.batch, key.keys
        others["mask"] = MASKS[numbers.mask](random, shape)
    return arrays, others


def call(key, x, others):
    """Calls a layer with weights that are arguments, and its dense maps."""
    layer = layer_of(key)
    mapping = [
        (variable, x[variable.path]) for variable in layer.trainable_weights
    ]
    with keras.StatelessScope(state_mapping=mapping):
        query, value = (
            ops.cast(x[name], key.dtype) for name in ("query", "value")
        )
        options = {"use_causal_mask": True} if key.causal else {}
        output = layer(
            query,
            value,
            value_mask=others.get("mask"),
            training=key.training,
            **options,
        )
        results = {
            "output": output,
            "q": heads_last(layer.into_heads(layer.query_dense, query)),
            "k": heads_last(layer.into_heads(layer.key_dense, value)),
            "v": heads_last(layer.into_heads(layer.value_dense, value)),
        }
        if key.layer == "gated":
            results["gate_logits"] = layer.gate_dense(value)
    total = ops.sum(ops.cast(output, "float32") * others["by_output"])
    return total, results


def dense(layer, arrays, x, axes, dtype):
    """Returns what a dense map gives, in float64."""
    size = np.abs(x.value)
    kernel = arrays[layer.kernel.path].astype("float64")
    bias = arrays[layer.bias.path].astype("float64")
    value = np.tensordot(x.value, kernel, axes) + bias
    plain = np.tensordot(size, np.abs(kernel), axes) + np.abs(bias)
    high = np.tensordot(size + x.error, np.abs(kernel), axes) + np.abs(bias)
    roundings = np.prod(kernel.shape[:axes]) + 5
    more = 1 + min(roundings, 7 * roundings**0.5) * UNIT[dtype]
    return Bounded(value, high * more - plain)


def heads_of(key, layer, arrays, actual, mask):
    """Returns what the heads give for queries, keys and values as they were."""
    features = layer.features
    projection = sigma = None
    if features.pool is not None:
        projection = ops.convert_to_numpy(features.pool.projection)
        sigma = arrays[features.sigma.path].astype("float64")
    q, k = (
        Features(
            actual[name],
            projection,
            sigma,
            key.feature_map,
            key.normalize,
            factored=True,
        )
        for name in ("q", "k")
    )
    weight = weight_error = None
    if key.feature_map == "gaussian" and not key.normalize:
        bounded = k.log_weight()
        weight, weight_error = bounded.value, bounded.error
    problem = Problem(
        q.features.value,
        k.features.value,
        actual["v"],
        causal=key.causal,
        epsilon=layer.epsilon,
        chunk_size=key.chunk_size,
        gate_logits=actual.get("gate_logits"),
        key_mask=mask,
        key_weight=weight,
        q_error=q.features.error,
        k_error=k.features.error,
        weight_error=weight_error,
    )
    return bounds(problem)[0]["output"]


@calls(2)
@given(layer_calls())
def test_layers(drawn):
    """Outputs are those of float64 within their bounds; gradients are finite.

    Queries, keys, values and gates are compared with float64 dense maps; from
    them on features, attention and the last dense map each add their error to
    the condition of what follows.
    """
    key, numbers = drawn
    arrays, others = layer_arrays(key, numbers)
    layer = layer_of(key)
    actual, gradients = run(call, key, arrays, others)
    inputs = {
        "q": (layer.query_dense, "query"),
        "k": (layer.key_dense, "value"),
        "v": (layer.value_dense, "value"),
    }
    for name, (into_heads, argument) in inputs.items():
        x = Bounded(arrays[argument].astype("float64"), 0.0)
        expected = dense(into_heads, arrays, x, 1, key.dtype)
        check(name, actual[name], expected, key.dtype)
    heads = heads_of(key, layer, arrays, actual, others.get("mask"))
    heads = heads.rounded(key.dtype)
    output = dense(layer.output_dense, arrays, heads, 2, key.dtype)
    # What its dtype cannot hold is lost.
    lost = inflated(heads).max((2, 3)) > 6e4
    if key.dtype == "float16":
        output.error[lost] = np.inf
    check("output", actual["output"], output, key.dtype)
    if key.dtype != "float16" or numbers.size in (0.0, 1.0):
        for name, x in gradients.items():
            assert np.all(np.isfinite(x)), f"gradient by {name}"
