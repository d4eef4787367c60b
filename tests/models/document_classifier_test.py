import keras
import numpy as np
import pytest
from keras import ops

from keras_rfa.layers import RandomFeatureAttention
from keras_rfa.models import document_classifier, document_encoder
from keras_rfa.models.attention import ATTENTIONS
from keras_rfa.testing import assert_close, assert_finite, compiled

SIZES = {
    "num_layers": 2,
    "hidden_dim": 8,
    "num_heads": 2,
    "intermediate_dim": 16,
}


def own_attention(num_heads, key_dim, name, **options):
    return RandomFeatureAttention(
        num_heads, key_dim, feature_map="elu", name=name, **options
    )


def classifier(**arguments):
    return document_classifier(20, 3, **{**SIZES, **arguments})


@pytest.mark.parametrize(
    ("attention", "convolution"),
    [
        *((attention, 1) for attention in (*ATTENTIONS, own_attention)),
        ("rfa", 3),
    ],
)
def test_padding_changes_no_logit(attention, convolution):
    model = classifier(attention=attention, convolution=convolution)
    assert model.input_shape == (None, None)
    assert model.input.dtype == "int32"
    call = compiled(lambda ids: model(ids))
    ids = np.random.default_rng(0).integers(1, 20, size=(2, 5), dtype="int32")
    expected = call(ids)
    assert expected.shape == (2, 3)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3
    padded = np.zeros((3, 9), "int32")  # the last document has no token
    padded[:2, :5] = ids
    actual = call(padded)
    assert_close("logits", actual[:2], expected)
    assert_finite("logits of an empty document", actual[2])


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("attention", ["rfa", "softmax"])
def test_logits_are_float32(policy, attention):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = classifier(attention=attention)
    finally:
        keras.config.set_dtype_policy(before)
    logits = model(ops.ones((1, 4), "int32"))
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    encoder_output = model.get_layer("norm").output
    assert encoder_output.dtype == policy[6:]


def test_one_model_trains_on_documents_of_any_length():
    model = classifier()
    xla = keras.backend.backend() != "torch"
    model.compile(
        keras.optimizers.Adam(1e-2),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=xla,
    )
    before = [ops.convert_to_numpy(w) for w in model.trainable_weights]
    for length in (4, 9):
        ids = np.random.default_rng(0).integers(20, size=(6, length))
        model.fit(ids, np.arange(6) % 3, batch_size=3, verbose=0)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        new = ops.convert_to_numpy(weight)
        assert_finite(weight.path, new)
        assert not np.array_equal(new, old), weight.path


def test_encoder_gives_a_vector_for_each_token_and_its_mask():
    encoder = document_encoder(20, **SIZES)
    assert encoder.output_shape == (None, None, 8)
    pooled = keras.layers.GlobalAveragePooling1D()(encoder.output)
    model = keras.Model(encoder.input, pooled)
    padded = model.predict(np.array([[3, 4, 5, 0, 0]]), verbose=0)
    alone = model.predict(np.array([[3, 4, 5]]), verbose=0)
    assert_close("pooled", padded, alone)


def test_blocks_draw_apart_from_each_other():
    size, options = np.int64(20), {"seed": 3}
    encoder = document_encoder(size, **SIZES, attention_options=options)
    seeds = [encoder.get_layer(f"block_{i}").attention.seed for i in (0, 1)]
    assert seeds == [3, 4]


def test_options_reach_the_layers():
    model = classifier(attention_options={"num_features": 5})
    for i in range(2):
        attention = model.get_layer(f"block_{i}").attention
        assert attention.num_features == 5
    seeds = {
        model.get_layer(f"block_{i}").attention.features.pool.seed
        for i in range(2)
    }
    assert len(seeds) == 2  # the layers have matrices of their own


@pytest.mark.parametrize("attention", ["rfa_gated", "performer", "softmax"])
def test_files(attention, tmp_path):
    model = classifier(attention=attention, convolution=2)
    ids = np.array([[3, 4, 5, 0], [6, 0, 0, 0]])
    expected = model.predict(ids, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close("logits", loaded.predict(ids, verbose=0), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden_dim": 9}, "Received: hidden_dim=9, num_heads=2"),
        ({"attention": "sparse"}, "Received: attention='sparse'"),
        ({"convolution": 0}, "Received: convolution=0"),
        ({"intermediate_dim": 0}, "Received: intermediate_dim=0"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        classifier(**arguments)
