import importlib.util

import keras
import pytest
from own_features import LearnedFeatures, squared_relu

from keras_rfa import testing
from keras_rfa.layers import (
    CrossRandomFeatureAttention,
    GatedRandomFeatureAttention,
    RandomFeatureAttention,
    RandomProjectionPool,
    TransformerDecoder,
    TransformerEncoder,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")


def rfa(layer=RandomFeatureAttention, **arguments):
    return lambda: layer(2, key_dim=8, num_features=16, seed=1, **arguments)


def orthogonal():
    pool = RandomProjectionPool(2, 16, 8, orthogonal=True, seed=1)
    return rfa(projection_pool=pool)()


def learned():
    return rfa(feature_map=LearnedFeatures(dtype="float32"))()


def unnormalized():
    """Estimates exp(q·k), which needs short vectors: it has no 1/√d."""
    short = keras.initializers.RandomNormal(stddev=0.05)
    return rfa(normalize_inputs=False, kernel_initializer=short)()


def encoder():
    return TransformerEncoder(rfa()(), intermediate_dim=16)


def decoder():
    return TransformerDecoder(
        rfa(GatedRandomFeatureAttention)(),
        intermediate_dim=16,
        cross_attention=rfa(CrossRandomFeatureAttention)(),
    )


gated = GatedRandomFeatureAttention
CASES = {
    "gaussian": (rfa(), "causal"),
    "unnormalized": (unnormalized, "causal"),
    "orthogonal": (orthogonal, "bidirectional"),
    "arccos": (rfa(feature_map="arccos"), "causal"),
    "positive": (rfa(feature_map="positive", value_dim=5), "bidirectional"),
    "elu": (rfa(feature_map="elu"), "causal"),
    "own_function": (rfa(feature_map=squared_relu), "bidirectional"),
    "own_layer": (learned, "causal"),
    "gated": (rfa(gated), "causal"),
    "gated_all": (rfa(gated), "bidirectional"),
    "gated_arccos": (rfa(gated, feature_map="arccos"), "causal"),
    "gated_arccos_all": (rfa(gated, feature_map="arccos"), "bidirectional"),
    "cross": (rfa(CrossRandomFeatureAttention), "cross"),
    "encoder": (encoder, "bidirectional"),
    "decoder": (decoder, "causal"),
}
BLOCKS = ("encoder", "decoder")


def says_something(check, name):
    """Whether a check has anything to compare; it passes where it has not."""
    _, form = CASES[name]
    gated = name.startswith("gated")
    return {
        testing.check_reference: name not in BLOCKS,
        testing.check_attention_scores: name not in BLOCKS,
        testing.check_streaming: not (gated and form == "bidirectional"),
        testing.check_chunk_size: gated or form == "causal",
        testing.check_causality: form == "causal",
        # One test saves all cases, and loads them in one process.
        testing.check_saving: False,
    }.get(check, True)


@pytest.mark.parametrize(
    ("check", "name"),
    [
        pytest.param(check, name, id=f"{check.__name__[6:]}-{name}")
        for check in testing.CHECKS
        for name in CASES
        if says_something(check, name)
    ],
)
def test_contract(check, name):
    arguments = {}
    if name in BLOCKS and check is testing.check_precision:
        arguments["reference"] = None
    check(*CASES[name], **arguments)


def test_files_on_every_installed_backend():
    installed = [
        backend
        for backend in ("tensorflow", "jax", "torch")
        if importlib.util.find_spec(backend)
    ]
    testing.check_saving(
        {name: make_layer for name, (make_layer, _) in CASES.items()},
        {name: form for name, (_, form) in CASES.items()},
        backends=installed,
        modules=["own_features"],
    )


def test_the_files_of_one_layer_alone():
    testing.check_saving(*CASES["own_function"], modules=["own_features"])


def test_a_file_that_does_not_load_is_found():
    with pytest.raises(AssertionError, match="does not load the model"):
        testing.check_saving(*CASES["own_function"])
