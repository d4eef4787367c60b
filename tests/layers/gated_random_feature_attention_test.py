import keras
import numpy as np
import pytest
from keras import ops

from keras_rfa.layers import GatedRandomFeatureAttention, SpreadMemory
from keras_rfa.testing import as_numpy, assert_close, compiled

X = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")


def attention(**arguments):
    layer = GatedRandomFeatureAttention(
        2, 4, num_features=16, seed=1, **arguments
    )
    layer.build(X.shape)
    return layer


def test_heads_remember_for_different_times():
    layer = GatedRandomFeatureAttention(8, 4, num_features=4)
    layer.build(X.shape)
    gates = as_numpy(ops.sigmoid(layer.gate_dense.bias))
    steps = 1 / (1 - gates)
    np.testing.assert_allclose(steps[[0, -1]], [4, 512], rtol=1e-3)
    np.testing.assert_allclose(steps[1:] / steps[:-1], 2, rtol=1e-3)


def test_a_closed_gate_forgets_everything():
    closed = keras.initializers.Constant(-40)
    layer = attention(feature_map="elu", gate_bias_initializer=closed)
    actual = compiled(lambda x: layer(x, x, use_causal_mask=True))(X)
    own_value = layer.output_dense(layer.value_dense(X))
    # Only the step itself is left, with a weight of 1.
    assert_close("output", actual, as_numpy(own_value))


def test_an_open_gate_keeps_the_state():
    layer = attention(gate_bias_initializer=keras.initializers.Constant(40))

    def call(x):
        state = {
            name: ops.ones_like(x) if name != "indices" else x
            for name, x in layer.get_initial_state(2).items()
        }
        _, last = layer(
            x,
            x,
            use_causal_mask=True,
            initial_state=state,
            return_state=True,
        )
        return state, last

    state, last = compiled(call)(X)
    assert_close("state", last, state, 1e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_gates_are_computed_in_float32(policy):
    layer = attention(dtype=policy)
    logits = layer.gate_dense(ops.cast(X, layer.compute_dtype))
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"


def test_a_two_sided_call_has_no_state():
    layer = attention()
    for arguments in (
        {"return_state": True},
        {"initial_state": layer.get_initial_state(2)},
    ):
        with pytest.raises(ValueError, match="Pass `use_causal_mask=True`"):
            layer(X, X, **arguments)


def test_lengths_must_be_equal():
    with pytest.raises(ValueError, match=r"query.shape=\(2, 6, 8\)"):
        attention()(X, X[:, :4])


def test_memories_of_an_initializer():
    values = as_numpy(SpreadMemory(2.0, 8.0)((3,)))
    np.testing.assert_allclose(values, np.log([1, 3, 7]), atol=1e-5)
    config = SpreadMemory(3.0, 5.0).get_config()
    assert SpreadMemory.from_config(config).get_config() == config


@pytest.mark.parametrize("lengths", [(1, 2), (4, 3), (4, float("inf"))])
def test_lengths_to_remember(lengths):
    with pytest.raises(ValueError, match="1 < shortest <= longest < inf"):
        SpreadMemory(*lengths)


def test_the_bias_of_the_gate_is_free():
    layer = GatedRandomFeatureAttention(
        2, 4, bias_regularizer="l2", bias_constraint="non_neg"
    )
    layer.build(X.shape)
    assert float(sum(layer.losses)) == 0
    assert layer.gate_dense.bias_constraint is None
