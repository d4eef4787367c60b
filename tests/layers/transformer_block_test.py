import copy

import keras
import numpy as np
import pytest
from keras import ops

from keras_rfa.layers import (
    CrossRandomFeatureAttention,
    RandomFeatureAttention,
    TransformerDecoder,
    TransformerEncoder,
)
from keras_rfa.testing import assert_close, compiled

X = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
MEMORY = np.random.default_rng(1).normal(size=(2, 5, 7)).astype("float32")
MASK = np.arange(6) < [[6], [4]]


def softmax():
    return keras.layers.MultiHeadAttention(2, 4)


def rfa():
    return RandomFeatureAttention(2, 4, num_features=8, seed=1)


def cross():
    return CrossRandomFeatureAttention(2, 4, num_features=8, seed=1)


def feed_forward(block, x):
    return block.contract_dense(ops.gelu(block.expand_dense(x), False))


@pytest.mark.parametrize("make_attention", [softmax, rfa])
@pytest.mark.parametrize("normalize_first", [True, False])
def test_encoder_is_the_documented_sum(make_attention, normalize_first):
    block = TransformerEncoder(
        make_attention(), 16, normalize_first=normalize_first
    )
    block.build(X.shape)
    norms = block.attention_norm, block.feed_forward_norm
    for norm in norms:
        norm.gamma.assign(np.linspace(0.5, 2, 8))

    def expected(x, mask):
        options = {"query_mask": mask, "value_mask": mask}
        first, second = norms
        if normalize_first:
            y = first(x)
            x = x + block.attention(y, y, **options)
            return x + feed_forward(block, second(x))
        x = first(x + block.attention(x, x, **options))
        return second(x + feed_forward(block, x))

    actual, outputs = compiled(
        lambda x, mask: (block(x, mask=mask), expected(x, mask))
    )(X, MASK)
    assert_close("outputs", actual, outputs)


@pytest.mark.parametrize("normalize_first", [True, False])
@pytest.mark.parametrize(
    ("make_attention", "make_cross"),
    [(softmax, softmax), (rfa, cross), (rfa, softmax), (rfa, None)],
)
def test_decoder_is_the_documented_sum(
    make_attention, make_cross, normalize_first
):
    cross_attention = make_cross() if make_cross else None
    block = TransformerDecoder(
        make_attention(),
        16,
        cross_attention=cross_attention,
        normalize_first=normalize_first,
    )
    block.build(X.shape, MEMORY.shape)

    def add(x, norm, sublayer):
        if normalize_first:
            return x + sublayer(norm(x))
        return norm(x + sublayer(x))

    def expected(x, memory):
        x = add(
            x,
            block.self_attention_norm,
            lambda y: block.self_attention(y, y, use_causal_mask=True),
        )
        if cross_attention is not None:
            x = add(
                x,
                block.cross_attention_norm,
                lambda y: cross_attention(y, memory),
            )
        return add(x, block.feed_forward_norm, lambda y: feed_forward(block, y))

    def call(x, memory):
        arguments = {} if cross_attention is None else {"memory": memory}
        return block(x, **arguments), expected(x, memory)

    assert_close("outputs", *compiled(call)(X, MEMORY))


def test_decoder_masks_its_memory():
    block = TransformerDecoder(rfa(), 16, cross_attention=cross())
    block.build(X.shape, MEMORY.shape)
    mask = np.arange(5) < [[3], [3]]
    actual = compiled(lambda x, m, mask: block(x, m, memory_mask=mask))(
        X, MEMORY, mask
    )
    expected = compiled(lambda x, m: block(x, m))(X, MEMORY[:, :3])
    assert_close("outputs", actual, expected)


@pytest.mark.parametrize("make_attention", [softmax, cross])
def test_every_decoder_masks_the_memory_that_they_share(make_attention):
    ids, x = keras.Input((None,), dtype="int32"), keras.Input((None, 8))
    memory = keras.layers.Embedding(10, 7, mask_zero=True)(ids)
    y = x
    for _ in range(3):
        y = TransformerDecoder(rfa(), 16, make_attention())(y, memory)
    model = keras.Model([ids, x], y)
    expected = model.predict([np.array([[3, 4, 5]]), X[:1]], verbose=0)
    padded = model.predict([np.array([[3, 4, 5, 0, 0]]), X[:1]], verbose=0)
    assert_close("outputs", padded, expected)


@pytest.mark.parametrize("normalize_first", [True, False])
@pytest.mark.parametrize("make_attention", [softmax, rfa])
def test_the_mask_of_the_inputs_stays(make_attention, normalize_first):
    embedding = keras.layers.Embedding(10, 8, mask_zero=True)
    x = embedding(np.array([[3, 4, 0]]))
    block = TransformerEncoder(
        make_attention(), 16, normalize_first=normalize_first
    )
    first, second = (ops.convert_to_numpy(block(x)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_decoder_reads_an_encoded_memory_step_by_step():
    block = TransformerDecoder(rfa(), 16, cross_attention=cross())
    block.build(X.shape, MEMORY.shape)
    expected = compiled(lambda x, memory: block(x, memory))(X, MEMORY)

    def call(x, memory):
        states = {"cross": block.cross_attention.encode(memory)}
        outputs = []
        for i in range(x.shape[1]):
            y, states = block(
                x[:, i : i + 1], initial_state=states, return_state=True
            )
            outputs.append(y)
        return ops.concatenate(outputs, axis=1)

    assert_close("outputs", compiled(call)(X, MEMORY), expected)


def test_blocks_hand_the_mask_on():
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(9, 8, mask_zero=True)(ids)
    x = TransformerEncoder(rfa(), 16)(x)
    x = TransformerDecoder(rfa(), 16)(x)
    pooled = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(ids, pooled)
    padded = model.predict(np.array([[3, 4, 5, 0, 0]]), verbose=0)
    assert_close(
        "pooled", padded, model.predict(np.array([[3, 4, 5]]), verbose=0)
    )


@pytest.mark.parametrize("make_attention", [softmax, rfa])
def test_configs_and_files(make_attention, tmp_path):
    x, memory = keras.Input((6, 8)), keras.Input((5, 7))
    y = TransformerEncoder(make_attention(), 16, 0.1, "relu", False)(x)
    y = TransformerDecoder(
        make_attention(), 16, make_attention(), layer_norm_epsilon=1e-3
    )(y, memory)
    model = keras.Model([x, memory], y)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    encoder, decoder = (loaded.layers[i].get_config() for i in (1, 3))
    assert (encoder["dropout"], encoder["activation"]) == (0.1, "relu")
    assert not encoder["normalize_first"]
    assert decoder["layer_norm_epsilon"] == 1e-3
    expected = model.predict([X, MEMORY], verbose=0)
    assert_close("outputs", loaded.predict([X, MEMORY], verbose=0), expected)


def test_symbolic_states_have_the_shapes_of_real_ones():
    encoder = TransformerEncoder(rfa(), 16)
    decoder = TransformerDecoder(rfa(), 16, cross_attention=cross())
    x, memory = (
        keras.Input(batch_shape=X.shape),
        keras.Input(batch_shape=MEMORY.shape),
    )
    symbolic = (
        encoder(x, return_state=True),
        decoder(x, memory, return_state=True),
    )
    real = compiled(
        lambda x, memory: (
            encoder(x, return_state=True),
            decoder(x, memory, return_state=True),
        )
    )(X, MEMORY)
    keras.tree.assert_same_structure(symbolic, real)
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_equal(tuple(a.shape), b.shape),
        symbolic,
        real,
    )


def test_dropout_only_in_training():
    block = TransformerEncoder(rfa(), 16, dropout=0.5)
    block.build(X.shape)

    def call(x):
        with keras.StatelessScope():
            trained = block(x, training=True)
        return block(x), block(x, training=False), trained

    plain, served, trained = compiled(call)(X)
    np.testing.assert_array_equal(plain, served)
    assert np.abs(plain - trained).max() > 0.1


def test_a_block_that_was_not_made_has_no_layers():
    attention = rfa()
    with pytest.raises(ValueError, match="Received: cross_attention='rfa'"):
        TransformerDecoder(attention, 16, "rfa")
    with pytest.raises(ValueError, match="already belongs to a block"):
        TransformerDecoder(attention, 16, attention)
    block = TransformerDecoder(attention, 16)
    with pytest.raises(ValueError, match="already belongs to a block"):
        TransformerEncoder(attention, 16)
    assert block.self_attention is attention


class Difference(keras.layers.Layer):
    """An attention that Keras builds when it is first called."""

    def __init__(self, num_heads=1, key_dim=8, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(8)

    def call(self, query, value, **masks):
        return self.dense(query - ops.mean(value, axis=1, keepdims=True))


def test_any_attention_layer_will_do():
    model = keras.Sequential([TransformerEncoder(Difference(), 16)])
    model.compile("sgd", "mse")
    model.fit(X, X, verbose=0)
    assert model.layers[0].attention.dense.built


def test_a_block_that_is_gone_has_no_layers():
    attention = rfa()
    for _ in range(2):  # as a cell of a notebook that runs again
        block = TransformerEncoder(attention, 16)
        del block
    block = TransformerEncoder(attention, 16)
    TransformerEncoder(copy.deepcopy(attention), 16)
    with pytest.raises(ValueError, match="already belongs to a block"):
        TransformerEncoder(attention, 16)
    assert block.attention is attention


def test_symbolic_calls_raise_what_real_ones_do():
    x, memory = keras.Input((6, 8)), keras.Input((5, 7))
    with pytest.raises(ValueError, match="sees no memory"):
        TransformerDecoder(rfa(), 16)(x, memory)
    decoder = TransformerDecoder(rfa(), 16, softmax())
    decoder.build(X.shape, MEMORY.shape)
    with pytest.raises(ValueError, match="needs `memory`"):
        decoder(x)
    with pytest.raises(ValueError, match="MultiHeadAttention keeps no state"):
        decoder(x, memory, return_state=True)


def test_errors():
    with pytest.raises(ValueError, match="Received: attention='rfa'"):
        TransformerEncoder("rfa", 16)
    with pytest.raises(ValueError, match="Received: self_attention=3"):
        TransformerDecoder(3, 16)
    with pytest.raises(ValueError, match="Received: cross_attention='rfa'"):
        TransformerDecoder(rfa(), 16, "rfa")
    with pytest.raises(ValueError, match="Received: intermediate_dim=0"):
        TransformerEncoder(rfa(), 0)
    with pytest.raises(ValueError, match="MultiHeadAttention keeps no state"):
        TransformerEncoder(softmax(), 16)(X, return_state=True)
    with pytest.raises(ValueError, match="sees no memory"):
        TransformerDecoder(rfa(), 16)(X, MEMORY)
    with pytest.raises(ValueError, match="called, or built, with a memory"):
        TransformerDecoder(rfa(), 16, cross()).build(X.shape)
    decoder = TransformerDecoder(rfa(), 16, cross())
    decoder.build(X.shape, MEMORY.shape)
    with pytest.raises(ValueError, match="needs `memory`"):
        decoder(X)
    with pytest.raises(ValueError, match=r"Received: \['other'\]"):
        decoder(X, MEMORY, initial_state={"other": 1})
