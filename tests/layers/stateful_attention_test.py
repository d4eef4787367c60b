import keras
import numpy as np
import pytest
from keras import ops

from keras_rfa import testing
from keras_rfa.layers import (
    CrossRandomFeatureAttention,
    RandomFeatureAttention,
    RandomProjectionPool,
    TransformerEncoder,
)

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


def stateful_layer():
    pool = RandomProjectionPool(2, 8, 4, seed=0)
    layer = RandomFeatureAttention(2, 4, projection_pool=pool, stateful=True)
    layer.build(X.shape, X.shape)
    return layer


def attend(layer, training):
    x = ops.convert_to_tensor(X)
    outputs = layer(x, x, use_causal_mask=True, training=training)
    return ops.convert_to_numpy(outputs)


def test_sums_of_other_matrices_are_not_read():
    """From training to inference and back without a reset begins anew."""
    layer, fresh = stateful_layer(), stateful_layer()
    fresh.set_weights(layer.get_weights())
    expected = attend(fresh, training=False)
    attend(layer, training=True)
    np.testing.assert_allclose(attend(layer, training=False), expected)
    continued = attend(layer, training=False)
    assert np.abs(continued - expected).max() > 1e-3
    weight = ops.convert_to_numpy(layer.carried_state.entries["weight"])
    np.testing.assert_allclose(weight, 10)
    attend(layer, training=True)
    weight = ops.convert_to_numpy(layer.carried_state.entries["weight"])
    np.testing.assert_allclose(weight, 5)


def test_training_draws_before_the_first_reset():
    drawn = ops.convert_to_numpy(
        stateful_layer().carried_state.entries["drawn"]
    )
    assert drawn.shape == (2,)
    assert drawn.any()


def test_an_activity_regularizer_is_not_asked_about_states():
    layer = RandomFeatureAttention(2, 4, activity_regularizer="l2")
    x = ops.convert_to_tensor(X)
    layer(x, x, return_state=True)
    assert len(layer.losses) == 1
    config = layer.get_config()
    assert config["activity_regularizer"]["class_name"] == "L2"


def test_symbolic_calls_are_checked():
    x, other = keras.Input((5, 8)), keras.Input((7, 8))
    layer = RandomFeatureAttention(2, 4)
    with pytest.raises(ValueError, match=r"layer\(x, x\)"):
        layer(x)
    with pytest.raises(ValueError, match="as many queries as keys"):
        layer(x, other, use_causal_mask=True)
    with pytest.raises(ValueError, match=r"key padding.*\(None, 5, 5\)"):
        layer(x, x, attention_mask=keras.Input((5, 5), dtype="bool"))
    with pytest.raises(ValueError, match="between two sequences"):
        CrossRandomFeatureAttention(2, 4)(x, other, use_causal_mask=True)
    with pytest.raises(ValueError, match="must have shape"):
        layer.build((2, 5, 6, 8), (2, 5, 6, 8))


def test_two_blocks_do_not_share_an_attention():
    attention = RandomFeatureAttention(2, 4)
    block = TransformerEncoder(attention, 16)
    with pytest.raises(ValueError, match="already belongs to a block"):
        TransformerEncoder(attention, 16)
    assert block.attention is attention


def test_layers_do_not_share_a_feature_map(tmp_path):
    feature_map = LearnedSquares()
    layers = [
        RandomFeatureAttention(2, 4, feature_map=feature_map) for _ in range(2)
    ]
    x = inputs = keras.Input((5, 8))
    for layer in layers:
        x = layer(x, x)
    model = keras.Model(inputs, x)
    gains = [w for w in model.trainable_weights if w.path.endswith("gain")]
    assert len(gains) == 2
    for weight in gains:
        weight.assign(weight + keras.random.uniform(weight.shape))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    testing.assert_close(
        "outputs after loading",
        loaded.predict(X, verbose=0),
        model.predict(X, verbose=0),
    )


@keras.saving.register_keras_serializable(package="stateful_attention_test")
class LearnedSquares(keras.layers.Layer):
    def build(self, x_shape, projection_shape):
        self.gain = self.add_weight(name="gain", initializer="ones")

    def call(self, x, projection):
        angles = ops.einsum("bthd,hDd->bthD", x, projection)
        return self.gain * ops.square(angles)
