"""What Keras does to models: with our layers in them, by numbers."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_rfa.layers import (
    CrossRandomFeatureAttention,
    GatedRandomFeatureAttention,
    MaskedAveragePooling,
    RandomFeatureAttention,
    TransformerDecoder,
    TransformerEncoder,
)
from keras_rfa.models import document_classifier
from keras_rfa.testing import assert_close, differentiated
from keras_rfa.testing.backends import as_numpy, operations

pytestmark = pytest.mark.usefixtures("quick_compilation")

random = np.random.default_rng(0)
IDS = random.integers(1, 20, (8, 10)).astype("int32")
CLASSES = IDS[:, 0] % 2
X = random.normal(size=(4, 10, 8)).astype("float32")


def classifier(attention="rfa_gated", **arguments):
    model = document_classifier(
        20,
        2,
        num_layers=1,
        hidden_dim=8,
        num_heads=2,
        intermediate_dim=16,
        attention=attention,
        attention_options={"num_features": 8, "seed": 1},
        dropout=0.0,
    )
    return compiled(model, **arguments)


def compiled(model, optimizer="adam"):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    return model


def fit(model, **arguments):
    arguments = {"batch_size": 8, "verbose": 0, "shuffle": False, **arguments}
    return model.fit(IDS, CLASSES, **arguments).history


def predict(model, ids=IDS):
    return model.predict(ids, verbose=0)


def values(model):
    return {weight.path: as_numpy(weight) for weight in model.weights}


def rfa(layer=RandomFeatureAttention, **arguments):
    return layer(2, 4, num_features=8, seed=1, **arguments)


# LoRA


def test_lora(tmp_path):
    model = classifier()
    attention = model.get_layer("block_0").attention
    expected = predict(model)
    for dense in (attention.query_dense, attention.value_dense):
        dense.enable_lora(2)
    for weight in model.weights:
        weight.trainable = weight.name.startswith("lora_kernel")
    compiled(model, keras.optimizers.Adam(0.1))
    assert_close("outputs before training", predict(model), expected, 1e-6)
    before = values(model)
    fit(model)
    after = values(model)
    changed = {x for x in after if not np.array_equal(before[x], after[x])}
    block = "block_0/attention"
    # Of the first step: B is 0, so A has no gradient yet.
    assert changed == {
        f"{block}/query/lora_kernel_b",
        f"{block}/value/lora_kernel_b",
    }
    fit(model)
    changed = values(model)
    assert not np.array_equal(
        changed[f"{block}/query/lora_kernel_a"],
        before[f"{block}/query/lora_kernel_a"],
    )
    trained = predict(model)
    assert np.abs(trained - expected).max() > 1e-2
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    # The file holds the sum, as Keras' own layers do.
    assert not any("lora" in weight.name for weight in loaded.weights)
    assert_close("outputs after loading", predict(loaded), trained, 1e-5)


# Quantisation


def test_int8_is_as_close_as_its_steps():
    """Each operand is off by at most half a step, 1/254 of the largest."""
    layer = rfa()
    layer.build(X.shape)
    dense = layer.query_dense
    kernel = as_numpy(dense.kernel)
    expected = as_numpy(dense(X))
    dense.quantize("int8")
    assert dense.kernel.dtype == "int8"
    width = X.shape[-1]
    largest_x = np.abs(X).max(axis=-1)[..., None, None] / 254
    largest_w = np.abs(kernel).max(axis=0) / 254
    bound = (
        largest_x * np.abs(kernel).sum(axis=0)
        + largest_w * np.abs(X).sum(axis=-1)[..., None, None]
        + width * largest_x * largest_w
    )
    error = np.abs(as_numpy(dense(X)) - expected)
    assert (error <= bound + 1e-6).all()
    assert error.max() > bound.max() / 100


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`")
@pytest.mark.parametrize("attention", ["rfa", "rfa_gated"])
def test_quantised_models_load_again(attention, tmp_path):
    model = classifier(attention)
    expected = predict(model)
    model.quantize("int8")
    quantized = predict(model)
    error = np.linalg.norm(quantized - expected) / np.linalg.norm(expected)
    assert 0 < error < 0.05
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    block = loaded.get_layer("block_0")
    dense = [*block.dense_layers(), *block.attention.dense_layers()]
    assert {layer.kernel.dtype for layer in dense} == {"int8"}
    assert len(dense) == (7 if attention == "rfa_gated" else 6)
    assert_close("outputs after loading", predict(loaded), quantized, 1e-6)


# Rematerialisation


def encoder(**arguments):
    attention = rfa(dropout=0.1)
    return TransformerEncoder(attention, 16, name="block", **arguments)


def decoder(**arguments):
    return TransformerDecoder(
        rfa(GatedRandomFeatureAttention),
        16,
        rfa(CrossRandomFeatureAttention),
        name="block",
        **arguments,
    )


@pytest.mark.parametrize(
    ("make_block", "scope"),
    [
        (encoder, {"mode": "full"}),
        (encoder, {"mode": "activations"}),
        (decoder, {"mode": "list_of_layers", "layer_names": ["block"]}),
        (decoder, {"mode": "larger_than", "output_size_threshold": 9}),
    ],
    ids=["full", "activations", "list_of_layers", "larger_than"],
)
def test_rematerialised_gradients(make_block, scope):
    """They are those of the same matrices and the same dropout."""

    def step_of(scope):
        keras.utils.set_random_seed(0)
        with keras.RematScope(**scope):
            block = make_block(dropout=0.1)
            inputs = keras.Input(X.shape[1:])
            memory = (inputs,) if make_block is decoder else ()
            block(inputs, *memory)

        def loss(x):
            memory = (x,) if make_block is decoder else ()
            outputs = block(x, *memory, training=True)
            return ops.mean(ops.square(outputs)), outputs

        return differentiated(loss, block.trainable_weights)

    x = ops.convert_to_tensor(X)
    plain, scoped = (step_of(s) for s in ({"mode": None}, scope))
    assert operations(scoped, X)[0] > operations(plain, X)[0]
    plain, scoped = (step_of(s)(x) for s in ({"mode": None}, scope))
    assert_close("gradients", as_numpy(scoped), as_numpy(plain), 1e-5)


def test_training_of_rematerialised_layers():
    """Keras wraps the call of any other layer, whatever it draws."""

    def train(scope):
        keras.utils.set_random_seed(0)
        x = keras.Input((None, 8))
        with keras.RematScope(**scope):
            attention = rfa(dropout=0.1)(x, x)
            y = encoder(dropout=0.1)(attention)
        model = keras.Model(x, y)
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(X, X, batch_size=2, verbose=0)
        return model.get_weights()

    plain, scoped = (train({"mode": mode}) for mode in (None, "full"))
    assert_close("weights", scoped, plain, 1e-5)


# Callbacks


@pytest.mark.parametrize("weights_only", [True, False])
def test_the_best_epoch_is_kept(weights_only, tmp_path):
    path = tmp_path / ("best.weights.h5" if weights_only else "best.keras")
    model = classifier()
    history = fit(
        model,
        epochs=3,
        validation_data=(IDS, CLASSES),
        callbacks=[
            keras.callbacks.ModelCheckpoint(
                path,
                monitor="val_loss",
                save_best_only=True,
                save_weights_only=weights_only,
            ),
            keras.callbacks.LearningRateScheduler(
                lambda epoch: 10.0 if epoch == 2 else 0.01
            ),
        ],
    )["val_loss"]
    assert history[1] < min(history[0], history[2])
    if weights_only:
        best = classifier()
        best.load_weights(path)
    else:
        best = keras.saving.load_model(path)
    loss = best.evaluate(IDS, CLASSES, verbose=0)
    assert_close("loss", loss, history[1], 1e-5)


# Kinds of models


def test_clones_share_nothing():
    model = classifier()
    clone = compiled(keras.models.clone_model(model))
    assert clone.get_config() == model.get_config()
    assert values(clone).keys() == values(model).keys()
    mine, its = (
        m.get_layer("block_0").attention.features.pool for m in (model, clone)
    )
    assert mine is not its
    # The seed is part of the config.
    assert_close("matrices", as_numpy(its.pool), as_numpy(mine.pool), 0)
    before = values(model)
    kernel = "block_0/attention/query/kernel"
    assert np.abs(values(clone)[kernel] - before[kernel]).max() > 0.1
    fit(clone)
    assert_close("weights", values(model), before, 0)


@keras.saving.register_keras_serializable(package="facilities_test")
class Tagger(keras.Model):
    """A model that a user writes as a class."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.embedding = keras.layers.Embedding(20, 8, mask_zero=True)
        self.block = encoder()
        self.pooling = MaskedAveragePooling()
        self.logits = keras.layers.Dense(2)

    def call(self, ids):
        return self.logits(self.pooling(self.block(self.embedding(ids))))


def sequential():
    return keras.Sequential(
        [
            keras.layers.Embedding(20, 8, mask_zero=True),
            encoder(),
            MaskedAveragePooling(),
            keras.layers.Dense(2),
        ]
    )


@pytest.mark.parametrize("make_model", [Tagger, sequential])
def test_models_of_other_kinds(make_model, tmp_path):
    model = compiled(make_model(), keras.optimizers.Adam(0.01))
    losses = fit(model, epochs=4)["loss"]
    assert losses[-1] < losses[0]
    expected = predict(model)
    padded = predict(model, np.pad(IDS, ((0, 0), (0, 5))))
    assert_close("outputs of padded rows", padded, expected, 1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_close("outputs after loading", predict(loaded), expected, 1e-6)


# Half precision


def test_an_overflow_is_skipped_and_the_scale_adapts():
    """Without an embedding.

    On TensorFlow Keras 3.15 finds no overflow in the gradient of a token that
    is there twice, if the other one's is finite.
    """
    x = keras.Input((None, 8), dtype="float32")
    keras.config.set_dtype_policy("mixed_float16")
    try:
        y = TransformerEncoder(rfa(GatedRandomFeatureAttention), 16)(x)
    finally:
        keras.config.set_dtype_policy("float32")
    model = keras.Model(x, keras.layers.Dense(8)(y))
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.01),
        initial_scale=2.0**40,
        dynamic_growth_steps=2,
    )
    model.compile(optimizer, "mse")
    before = values(model)
    model.fit(X, X, verbose=0)
    assert_close("weights", values(model), before, 0)
    assert as_numpy(optimizer.dynamic_scale) == 2.0**39
    losses = model.fit(X, X, epochs=50, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    # It halves at each overflow and doubles after two steps without one.
    assert 2.0**8 < as_numpy(optimizer.dynamic_scale) < 2.0**30
