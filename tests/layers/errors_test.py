import keras
import numpy as np
import pytest
from keras import ops

from keras_rfa.layers import RandomFeatureAttention, RandomProjectionPool
from keras_rfa.testing import compiled

WIDTH = 8
X = np.random.default_rng(0).normal(size=(3, 6, WIDTH)).astype("float32")


def attention(**arguments):
    return RandomFeatureAttention(2, 4, num_features=16, seed=1, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 0}, "Received: num_heads=0"),
        ({"key_dim": 2.5}, "Received: key_dim=2.5"),
        ({"value_dim": -1}, "Received: value_dim=-1"),
        ({"output_shape": 0}, "Received: output_shape=0"),
        ({"num_features": 0}, "Received: num_features=0"),
        ({"num_features": True}, "Received: num_features=True"),
        ({"chunk_size": 0}, "Received: chunk_size=0"),
        ({"epsilon": -0.5}, "Received: epsilon=-0.5"),
        ({"epsilon": float("nan")}, "Received: epsilon=nan"),
        ({"epsilon": "8"}, "Received: epsilon='8'"),
        ({"seed": True}, "Received: seed=True"),
        ({"feature_map": "cosine"}, "Received: feature_map='cosine'"),
        ({"feature_map": 3}, "Received: feature_map=3"),
        ({"projection_pool": "large"}, "Received: projection_pool='large'"),
        (
            {
                "feature_map": "elu",
                "projection_pool": RandomProjectionPool(2, 16, 4),
            },
            "no use for `projection_pool`",
        ),
        (
            {"projection_pool": RandomProjectionPool(3, 16, 4)},
            r"\(2, 4\). Received: \(3, 4\)",
        ),
    ],
)
def test_errors_of_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        RandomFeatureAttention(**{"num_heads": 2, "key_dim": 4, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"attention_mask": np.ones((3, 6, 6), bool)},
            r"use_causal_mask=True.*attention_mask.shape=\(3, 6, 6\)",
        ),
        (
            {"attention_mask": np.ones((3, 2, 1, 6), bool)},
            r"attention_mask.shape=\(3, 2, 1, 6\)",
        ),
        (
            {"attention_mask": np.ones((3, 6), bool)},
            r"attention_mask.shape=\(3, 6\)",
        ),
        (
            {"attention_mask": np.ones((2, 1, 6), bool)},
            r"`attention_mask` must have shape \(batch=3",
        ),
        ({"value_mask": np.ones((3, 5), bool)}, "`value_mask` must have"),
        ({"key_mask": np.ones((3, 6, 1), bool)}, "`key_mask` must have"),
        (
            {"value": X[:, :4], "use_causal_mask": True},
            "Received: query.shape=.3, 6, 8., value.shape=.3, 4, 8.",
        ),
        ({"value": None}, "`value=None` reads a state"),
        ({"initial_state": {"s": X}}, r"Received: \['s'\]"),
    ],
)
def test_errors_of_calls(arguments, message):
    layer = attention()
    layer.build(X.shape)
    with pytest.raises(ValueError, match=message):
        layer(X, **{"value": X, **arguments})


def test_errors_of_states():
    layer = attention()
    layer.build(X.shape)
    state = layer.get_initial_state(3)
    with pytest.raises(ValueError, match="no longer has the keys"):
        layer(X, X, initial_state=state, return_attention_scores=True)
    with pytest.raises(ValueError, match="has no attention map"):
        layer(X, initial_state=state, return_attention_scores=True)
    with pytest.raises(ValueError, match=r"initial_state\['s'\].*\(4, 2, 32"):
        layer(X, X, initial_state=layer.get_initial_state(4))
    half = {**state, "z": ops.cast(state["z"], "float16")}
    with pytest.raises(ValueError, match="Received: dtype=float16"):
        layer(X, X, initial_state=half)
    for indices in ([0, 200], [-1, 0]):
        other = {**state, "indices": ops.convert_to_tensor(indices, "int32")}
        with pytest.raises(ValueError, match=r"0 to 199.*Received: indices="):
            layer(X, X, initial_state=other)
    with pytest.raises(ValueError, match="Build it with stateful=True"):
        layer.reset_state()
    with pytest.raises(ValueError, match="Received: batch size None"):
        attention(stateful=True)(keras.Input((6, WIDTH)))


def test_indices_are_not_known_while_a_function_is_compiled():
    layer = attention()
    layer.build(X.shape)
    state = layer.get_initial_state(3)
    expected = ops.convert_to_numpy(layer(X, X, initial_state=state))
    step = compiled(lambda x, state: layer(x, x, initial_state=state))
    np.testing.assert_allclose(
        step(X, keras.tree.map_structure(ops.convert_to_numpy, state)),
        expected,
        atol=1e-5,
    )
