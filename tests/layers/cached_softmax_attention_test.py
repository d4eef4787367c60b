"""Softmax attention with a cache, beside that of Keras without one."""

import keras
import numpy as np
import pytest

from keras_rfa import testing
from keras_rfa.layers import CachedSoftmaxAttention
from keras_rfa.testing import as_numpy, assert_close, compiled

HEADS, WIDTH, STEPS = 2, 12, 9
X = np.random.default_rng(0).normal(size=(3, STEPS, WIDTH)).astype("float32")
MEMORY = np.random.default_rng(1).normal(size=(3, 5, 6)).astype("float32")
MASK = np.array([[1] * 9, [1] * 4 + [0] * 5, [0, 0, 1, 1, 0, 1, 1, 1, 0]], bool)


def attention(**arguments):
    return CachedSoftmaxAttention(HEADS, 8, **arguments)


def pair(value=X, **arguments):
    """The layer, and Keras' own with the same weights."""
    layer = attention(value_dim=5, **arguments)
    layer.build(X.shape, value.shape)
    other = keras.layers.MultiHeadAttention(HEADS, 8, 5, **arguments)
    other.build(X.shape, value.shape)
    for weight in layer.weights:  # biases too
        value = np.random.default_rng(2).normal(size=weight.shape) / 3
        weight.assign(value.astype("float32"))
    other.set_weights(layer.get_weights())
    return layer, other


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, MASK])
def test_it_is_the_attention_of_keras(causal, mask):
    layer, other = pair()
    options = {"use_causal_mask": causal, "return_attention_scores": True}
    if mask is not None:
        options["value_mask"] = mask
    actual = compiled(lambda x: layer(x, x, **options))(X)
    expected = compiled(lambda x: other(x, x, **options))(X)
    # Where a query sees no key, Keras gives the mean of all values.
    sees = np.ones_like(MASK)
    if causal and mask is not None:
        sees = np.cumsum(mask, axis=1) > 0
    assert_close("outputs", actual[0][sees], expected[0][sees], 1e-5)
    by_query = np.moveaxis(actual[1], 1, -1), np.moveaxis(expected[1], 1, -1)
    assert_close("weights", *(x[sees] for x in by_query), 1e-5)


def test_no_key_gives_what_no_value_would():
    layer, _ = pair()
    nothing = np.zeros_like(MASK)
    outputs = layer(X, X, value_mask=nothing)
    bias = as_numpy(layer.output_dense.bias)
    assert_close("outputs", as_numpy(outputs), np.broadcast_to(bias, X.shape))


def test_a_memory_is_projected_once():
    layer, other = pair(MEMORY)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 0, 1]], bool)
    # Without the weights Keras takes another way, not for this `value_dim`.
    options = {"value_mask": mask, "return_attention_scores": True}
    expected = as_numpy(other(X, MEMORY, **options))[0]
    actual = as_numpy(layer(X, MEMORY, value_mask=mask))
    assert_close("at once", actual, expected, 1e-5)
    state = layer.encode(MEMORY, value_mask=mask)
    for part in (slice(0, 1), slice(1, 9)):
        actual = as_numpy(layer(X[:, part], initial_state=state))
        assert_close("parts", actual, expected[:, part], 1e-5)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("slots", [STEPS, 20])
def test_parts_give_the_outputs_of_the_whole(slots, policy):
    layer = attention(dtype=policy)
    layer.build(X.shape)

    def read(x, mask):
        options = {"use_causal_mask": True}
        whole = layer(x, x, value_mask=mask, **options)
        state = layer.get_initial_state(3, max_length=slots)
        outputs = []
        for part in (slice(0, 4), slice(4, 5), slice(5, 9)):
            y, state = layer(
                x[:, part],
                x[:, part],
                value_mask=mask[:, part],
                initial_state=state,
                return_state=True,
                **options,
            )
            outputs.append(y)
        return keras.ops.concatenate(outputs, axis=1), whole, state

    parts, whole, state = compiled(read)(X, MASK)
    assert_close("outputs", parts, whole, 1e-5 if policy == "float32" else 2e-2)
    assert state["key"].shape == (3, HEADS, slots, 8)
    np.testing.assert_array_equal(state["steps"], [STEPS] * 3)
    np.testing.assert_array_equal(state["mask"][:, :STEPS], MASK)


def test_a_cache_that_is_overfull_gives_no_number():
    layer = attention()
    layer.build(X.shape)
    state = layer.get_initial_state(3, max_length=STEPS)
    options = {"use_causal_mask": True, "return_state": True}
    outputs, state = layer(X, X, initial_state=state, **options)
    assert np.isfinite(as_numpy(outputs)).all()
    step = X[:, :1]
    outputs, _ = layer(step, step, initial_state=state, **options)
    assert np.isnan(as_numpy(outputs)).all()


@pytest.mark.parametrize("form", ["causal", "bidirectional", "cross"])
@pytest.mark.parametrize(
    "check",
    [
        testing.check_attention_scores,
        testing.check_causality,
        testing.check_fit,
    ],
)
def test_contract(check, form):
    if check is testing.check_causality and form != "causal":
        return  # the other forms see all keys
    check(attention, form)


def test_configs_and_states_in_a_functional_model(tmp_path):
    x = keras.Input((None, WIDTH))
    layer = attention(dropout=0.5, seed=3, value_dim=5, name="cached")
    y, state = layer(x, x, use_causal_mask=True, return_state=True)
    read = layer(x, initial_state=state)
    model = keras.Model(x, [y, read])
    expected = model.predict(X, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close("outputs", loaded.predict(X, verbose=0), expected, 1e-6)
    assert loaded.get_layer("cached").get_config() == layer.get_config()


def test_errors():
    layer = attention()
    layer.build(X.shape)
    with pytest.raises(ValueError, match=r"pass `max_length`"):
        layer.get_initial_state(3)
    with pytest.raises(ValueError, match=r"reads a state alone"):
        layer(X)
    with pytest.raises(ValueError, match=r"as many queries as keys"):
        layer(X, X[:, 1:], use_causal_mask=True)
    state = layer.get_initial_state(2, max_length=STEPS)
    with pytest.raises(ValueError, match=r"batch=3.*Received"):
        layer(X, X, initial_state=state)
    state = layer.get_initial_state(3, max_length=STEPS - 1)
    with pytest.raises(ValueError, match=r"8 slots.*9 steps"):
        layer(X, X, initial_state=state)
    with pytest.raises(ValueError, match=r"keys.*Received.*'key'"):
        layer(X, X, initial_state={"key": state["key"]})
