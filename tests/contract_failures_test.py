"""Layers that break a promise must not pass its check."""

import keras
import pytest
from keras import ops

from keras_rfa import testing
from keras_rfa.layers import RandomFeatureAttention


class Attention(RandomFeatureAttention):
    def __init__(self, num_heads=2, key_dim=8, seed=1, **kwargs):
        super().__init__(num_heads, key_dim, seed=seed, **kwargs)


class Wrong(Attention):
    def _sum(self, x, causal, return_state):
        return super()._sum({**x, "v": 1.001 * x["v"]}, causal, return_state)


class Forgetful(Attention):
    def begin(self, batch_size, initial_state, training):
        return super().begin(batch_size, None, training)


class Floored(Attention):
    @property
    def epsilon(self):
        return (self.chunk_size or 8) / 8

    @epsilon.setter
    def epsilon(self, value):
        pass


class Embellished(Attention):
    def _scores(self, *args):
        return ops.abs(super()._scores(*args)) + 0.01


class Distracted(Attention):
    def _memory(self, value, key, key_mask):
        return super()._memory(value, key, None)


class Clairvoyant(Attention):
    def _sum(self, x, causal, return_state):
        return super()._sum(x, False, return_state)


class Unteachable(Attention):
    def call(self, query, value=None, key=None, **options):
        return ops.stop_gradient(super().call(query, value, key, **options))


class Mean(keras.layers.Layer):
    """The running mean of the values."""

    def build(self, query_shape, value_shape=None):
        self.gain = self.add_weight(name="gain", initializer="ones")

    def call(self, query, value, value_mask=None, use_causal_mask=False):
        count = ops.arange(1, value.shape[1] + 1, dtype="float32")
        sums = self.sums(value) * self.gain
        return sums / ops.cast(count[:, None], value.dtype)

    def sums(self, value):
        return ops.cumsum(value, axis=1)

    def compute_output_shape(self, query_shape, *_):
        return query_shape

    def compute_output_spec(self, query, *_, **__):
        return keras.KerasTensor(query.shape, self.compute_dtype)


class Unrolled(Mean):
    def sums(self, value):
        steps, total = [], 0
        for step in ops.unstack(value, axis=1):
            total = total + step
            steps.append(total)
        return ops.stack(steps, axis=1)


class Quadratic(Mean):
    def sums(self, value):
        step = ops.arange(value.shape[1])
        earlier = ops.cast(step[:, None] >= step[None, :], value.dtype)
        scores = ops.sin(ops.matmul(value, ops.swapaxes(value, 1, 2)))
        return ops.matmul(scores * earlier, value)


class Overflowing(Mean):
    def sums(self, value):
        return ops.exp(40 * ops.sigmoid(super().sums(value)))


class Coarse(Mean):
    def sums(self, value):
        half = keras.backend.standardize_dtype(value.dtype) != "float32"
        return super().sums(value) * (1.05 if half else 1)


class Misremembered(Attention):
    def get_config(self):
        config = super().get_config()
        return {**config, "dropout": config["dropout"] + 0.1}


@keras.saving.register_keras_serializable(package="tests")
class Unwritten(Mean):
    def save_own_variables(self, store):
        pass

    def load_own_variables(self, store):
        pass


@pytest.mark.parametrize(
    ("layer", "check", "message"),
    [
        (Wrong, testing.check_reference, "outputs of 1 steps"),
        (Forgetful, testing.check_streaming, "outputs of blocks of 1"),
        (Floored, testing.check_chunk_size, "chunk_size=1"),
        (Embellished, testing.check_attention_scores, "scores @ values"),
        (Distracted, testing.check_padding, "with padding on the right"),
        (Clairvoyant, testing.check_causality, "before the changed step"),
        (Unteachable, testing.check_fit, "Training has not changed"),
        (Unrolled, testing.check_graph_size, "160 chunks take"),
        (Quadratic, testing.check_linear_growth, "times the memory"),
        (Misremembered, testing.check_saving, "The config of"),
        (Unwritten, testing.check_saving, ": weights"),
    ],
)
def test_a_broken_promise_is_found(layer, check, message):
    with pytest.raises(AssertionError, match=message):
        check(layer)


@pytest.mark.parametrize(
    ("layer", "message"),
    [(Overflowing, "not finite"), (Coarse, "Relative error in mixed_")],
)
def test_imprecision_is_found(layer, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_precision(layer, reference=None, steps=2048)


def test_a_layer_of_another_kind_passes():
    testing.check_causality(Mean)
    testing.check_linear_growth(Mean)
    testing.check_streaming(Mean)


def test_forms_are_checked():
    with pytest.raises(ValueError, match="Received: form='sideways'"):
        testing.check_padding(Attention, "sideways")
