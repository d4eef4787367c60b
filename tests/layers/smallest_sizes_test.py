"""Sizes of one, which broadcasting takes for something else."""

import itertools

import keras
import numpy as np
import pytest

from keras_rfa.layers import (
    CrossRandomFeatureAttention,
    GatedRandomFeatureAttention,
    RandomFeatureAttention,
)
from keras_rfa.testing import (
    as_numpy,
    assert_close,
    attention_reference,
    check_attention_scores,
)

LAYERS = [
    RandomFeatureAttention,
    GatedRandomFeatureAttention,
    CrossRandomFeatureAttention,
]


@pytest.mark.parametrize(
    ("key_dim", "value_dim"),
    list(itertools.product((1, 3), (1, 2))),
)
@pytest.mark.parametrize("layer", LAYERS)
def test_heads_of_any_width(layer, key_dim, value_dim):
    """Of which there are as many as steps, rows or entries of a vector."""
    random = np.random.default_rng(0)
    causal = layer is not CrossRandomFeatureAttention
    for batch, steps, width, heads in itertools.product(
        (1, 3), (1, 3), (1, 3), (1, 3)
    ):
        x = random.normal(size=(batch, steps, width)).astype("float32")
        made = layer(
            heads,
            key_dim,
            value_dim=value_dim,
            num_features=8,
            seed=0,
        )
        made.build(x.shape, x.shape)
        for variable in made.trainable_weights:
            if variable.path.endswith("bias"):
                variable.assign(random.normal(size=variable.shape))
        actual = as_numpy(made(x, x, use_causal_mask=causal))
        expected = attention_reference(made, x, x, causal=causal)
        assert_close(
            f"{batch} rows, {steps} steps, width {width}, {heads} heads",
            actual,
            expected,
        )
        symbol = keras.Input((None, width))
        output = made(symbol, symbol, use_causal_mask=causal)
        assert output.shape == (None, None, width)


@pytest.mark.parametrize("layer", LAYERS)
def test_scores_of_heads_of_one_entry(layer):
    """In the contract, which reads nine steps."""
    form = "cross" if layer is CrossRandomFeatureAttention else "causal"
    check_attention_scores(
        lambda: layer(9, 1, num_features=8, bias_initializer="normal", seed=0),
        form,
    )
