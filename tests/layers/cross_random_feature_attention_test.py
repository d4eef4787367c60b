import keras
import numpy as np
import pytest

from keras_rfa.layers import CrossRandomFeatureAttention
from keras_rfa.testing import as_numpy, assert_close, compiled

random = np.random.default_rng(0)
QUERY = random.normal(size=(2, 5, 8)).astype("float32")
MEMORY = random.normal(size=(2, 7, 6)).astype("float32")
MASK = np.arange(7) < [[7], [3]]


def attention():
    return CrossRandomFeatureAttention(2, 4, num_features=16, seed=1)


def test_encode_finds_the_mask_of_its_memory():
    memory = keras.layers.Embedding(10, 6, mask_zero=True)(
        np.array([[1, 2, 3, 0, 0], [4, 0, 0, 0, 0]])
    )
    layer = attention()
    expected = layer(QUERY, memory)
    actual = layer(QUERY, initial_state=layer.encode(memory))
    assert_close("outputs", as_numpy(actual), as_numpy(expected))


def test_one_encoding_serves_every_step():
    layer = attention()
    layer.build(QUERY.shape, MEMORY.shape)

    def call(query, memory, mask):
        state = layer.encode(memory, value_mask=mask)
        steps = [
            layer(query[:, i : i + 1], initial_state=state)
            for i in range(query.shape[1])
        ]
        return layer(query, memory, value_mask=mask), steps, state

    expected, steps, state = compiled(call)(QUERY, MEMORY, MASK)
    assert_close("steps", np.concatenate(steps, axis=1), expected)
    np.testing.assert_array_equal(state["weight"], [[7, 7], [3, 3]])
    assert state["s"].shape == (2, 2, 32, 4)


def test_training_reads_with_the_matrices_it_encoded_with():
    layer = attention()
    layer.build(QUERY.shape, MEMORY.shape)

    def call(query, memory):
        with keras.StatelessScope():
            state = layer.encode(memory, training=True)
            outputs = [
                layer(
                    query,
                    initial_state=state,
                    return_state=True,
                    training=training,
                )
                for training in (True, False)
            ]
        return [(output, last["indices"]) for output, last in outputs], state

    (first, second), state = compiled(call)(QUERY, MEMORY)
    assert np.any(state["indices"])
    for _, indices in (first, second):
        np.testing.assert_array_equal(indices, state["indices"])
    assert_close("outputs", first[0], second[0])


def test_errors():
    layer = attention()
    with pytest.raises(ValueError, match="must be built before it encodes"):
        layer.encode(MEMORY)
    with pytest.raises(ValueError, match="use_causal_mask=True"):
        layer(QUERY, MEMORY, use_causal_mask=True)


def test_encode_is_no_part_of_a_functional_model():
    layer = attention()
    layer.build(QUERY.shape, MEMORY.shape)
    with pytest.raises(ValueError, match="Call the layer itself"):
        layer.encode(keras.Input(MEMORY.shape[1:]))
