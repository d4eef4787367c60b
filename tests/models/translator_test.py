"""Translators: the source read once, the target in parts."""

import keras
import numpy as np
import pytest
from keras import tree

from keras_rfa.layers import (
    CrossRandomFeatureAttention,
    GatedRandomFeatureAttention,
)
from keras_rfa.models import Translator, translator
from keras_rfa.models.attention import ATTENTIONS
from keras_rfa.testing import as_numpy, assert_close

SIZES = {
    "num_layers": 2,
    "hidden_dim": 8,
    "num_heads": 2,
    "intermediate_dim": 16,
}
RANDOM = np.random.default_rng(0)
SOURCE = RANDOM.integers(1, 15, (3, 7), dtype="int32")
TARGET = RANDOM.integers(1, 20, (3, 6), dtype="int32")


def model(**arguments):
    return translator(15, 20, **{**SIZES, **arguments})


def call(built, source, target):
    return as_numpy(built({"source": source, "target": target}))


def read(built, source, *parts):
    state = built.get_initial_state(source, max_length=20)
    logits = []
    for part in parts:
        outputs, state = built.call_with_state(part, state)
        logits.append(as_numpy(outputs))
    return np.concatenate(logits, axis=1), state


@pytest.mark.parametrize(
    "arguments",
    [
        *({"attention": name} for name in ATTENTIONS),
        {"normalize_first": False},
        {
            "attention": {
                "encoder": "softmax",
                "self": "rfa_gated",
                "cross": "rfa",
            }
        },
    ],
    ids=str,
)
def test_parts_give_the_logits_of_the_whole(arguments):
    built = model(**arguments)
    whole = call(built, SOURCE, TARGET)
    assert whole.shape == (3, 6, 20)
    parts, state = read(
        built, SOURCE.tolist(), *np.split(TARGET, [3, 4], axis=1)
    )
    assert_close("parts", parts, whole, 1e-5)
    assert all(tensor.shape[0] == 3 for tensor in tree.flatten(state))
    other = call(built, SOURCE[::-1], TARGET)
    assert np.abs(other - whole)[[0, 2]].max() > 1e-3


@pytest.mark.parametrize("attention", ["rfa", "softmax"])
def test_padding_changes_no_logit(attention):
    built = model(attention=attention)
    source = np.zeros((3, 9), "int32")
    source[:, :7] = SOURCE
    source[1, 4:] = 0  # a shorter one
    target = np.pad(TARGET, [(0, 0), (0, 2)])
    for row, count in enumerate((7, 4, 7)):
        alone = call(
            built, SOURCE[row : row + 1, :count], TARGET[row : row + 1]
        )
        padded = call(built, source, target)[row, :6]
        assert_close("at once", padded, alone[0], 1e-5)
        parts, _ = read(built, source, np.pad(TARGET, [(0, 0), (2, 0)]))
        assert_close("left padded", parts[row, 2:], alone[0], 1e-5)


def test_only_softmax_keeps_what_it_read():
    def sizes(attention, length):
        built = model(attention=attention)
        _, state = read(built, np.ones((1, length), "int32"), TARGET[:1])
        return [tensor.shape for tensor in tree.flatten(state)]

    assert sizes("rfa", 5) == sizes("rfa", 50)
    assert sizes("softmax", 5) != sizes("softmax", 50)


def test_attentions_and_options_by_role():
    built = model(
        attention="rfa_gated",
        attention_options={
            "encoder": {"num_features": 5, "seed": 1},
            "cross": {"num_features": 9},
        },
    )
    encoder = built.get_layer("encoder_block_1").attention
    decoder = built.get_layer("decoder_block_1")
    assert type(encoder) is GatedRandomFeatureAttention
    assert type(decoder.self_attention) is GatedRandomFeatureAttention
    assert type(decoder.cross_attention) is CrossRandomFeatureAttention
    layers = (encoder, decoder.self_attention, decoder.cross_attention)
    assert [layer.num_features for layer in layers] == [5, 64, 9]
    assert encoder.seed == 2
    everywhere = model(attention_options={"num_features": 3})
    block = everywhere.get_layer("decoder_block_0")
    assert block.cross_attention.num_features == 3


def test_shared_embeddings():
    built = translator(20, 20, **SIZES, share_embeddings=True)
    shapes = [w.shape for w in built.trainable_weights if 20 in w.shape]
    assert shapes == [(20, 8)]
    parts, _ = read(built, SOURCE, TARGET)
    assert_close("parts", parts, call(built, SOURCE, TARGET), 1e-5)


@pytest.mark.parametrize("attention", ["rfa_gated", "softmax"])
def test_files(attention, tmp_path):
    built = model(attention=attention)
    built.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, Translator)
    expected = call(built, SOURCE, TARGET)
    assert_close("logits", call(loaded, SOURCE, TARGET), expected, 1e-6)
    assert_close("parts", read(loaded, SOURCE, TARGET)[0], expected, 1e-5)


def test_it_learns_to_copy():
    built = translator(9, 9, **SIZES, share_embeddings=True, dropout=0.0)
    source = np.random.default_rng(0).integers(3, 9, (64, 3), dtype="int32")
    target = np.pad(source, [(0, 0), (1, 0)], constant_values=2)
    built.compile(
        keras.optimizers.Adam(0.02),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=keras.backend.backend() != "torch",
    )
    inputs = {"source": source, "target": target[:, :-1]}
    history = built.fit(inputs, source, 64, epochs=40, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"share_embeddings": True}, r"one vocabulary.*15.*20"),
        ({"attention": {"self": "rfa"}}, r"each of the roles.*\['self'\]"),
        (
            {
                "attention": {
                    "encoder": "rfa",
                    "self": "rfa",
                    "cross": "rfa_gated",
                }
            },
            r"role 'cross'.*'rfa_gated'",
        ),
        ({"attention": "none"}, r"must be one of.*'none'"),
        ({"hidden_dim": 9}, r"multiple of `num_heads`"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        model(**arguments)


def test_a_cross_attention_that_can_not_read_a_memory_once():
    def multi_head(num_heads, key_dim, name):
        return keras.layers.MultiHeadAttention(num_heads, key_dim, name=name)

    roles = {"encoder": "rfa", "self": "rfa", "cross": multi_head}
    built = model(attention=roles)
    with pytest.raises(ValueError, match=r"MultiHeadAttention.*`encode"):
        built.get_initial_state(SOURCE)
