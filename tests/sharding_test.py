"""Layout maps of `keras.distribution`, which Keras 3.15 has for JAX alone."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import pytest

import keras_rfa

PACKAGE = pathlib.Path(keras_rfa.__file__).parents[1]

# The axes of each weight that are cut, by its path.
LAYOUTS = {
    ".*/attention/(query|key|value)/kernel": (None, "model", None),
    ".*/attention/(query|key|value)/bias": ("model", None),
    ".*/attention/attention_output/kernel": ("model", None, None),
    ".*/attention/forget_gate/kernel": (None, "model"),
    ".*/features/sigma": ("model", None),
    ".*/projection": ("model", None, None),
    ".*/pool": ("model", None, None, None),
    ".*/expand/kernel": (None, "model"),
    ".*/contract/kernel": ("model", None),
}

PROGRAM = """
import json, re, sys
import keras, numpy
from keras import distribution
from keras_rfa.models import document_classifier

layouts = json.loads(sys.argv[1])
ids = numpy.random.default_rng(0).integers(1, 20, (8, 12)).astype("int32")

def train():
    keras.utils.set_random_seed(0)
    model = document_classifier(
        20, 2, num_layers=1, hidden_dim=8, num_heads=2, intermediate_dim=16,
        attention="rfa_gated", attention_options={"num_features": 8},
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    steps = [model.train_on_batch(ids, ids[:, 0] % 2) for _ in range(3)]
    return [float(step) for step in steps], model

expected, _ = train()
mesh = distribution.DeviceMesh((4, 2), ("batch", "model"))
layout_map = distribution.LayoutMap(mesh)
for path, axes in layouts.items():
    layout_map[path] = tuple(axes)
distribution.set_distribution(
    distribution.ModelParallel(layout_map=layout_map, batch_dim_name="batch")
)
losses, model = train()
axes = {}
for weight in model.weights:
    spec = list(weight.value.sharding.spec)
    spec += [None] * (len(weight.shape) - len(spec))
    shard = weight.value.addressable_shards[0].data.shape
    axes[weight.path] = (spec, list(weight.shape), list(shard))
devices = len(model.weights[0].value.sharding.device_set)
print(json.dumps([expected, losses, axes, devices]))
"""


def on_eight_devices():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(LAYOUTS)],
        env={
            **os.environ,
            "PYTHONPATH": str(PACKAGE),
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            "JAX_PLATFORMS": "cpu",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


if keras.backend.backend() == "jax":

    def test_heads_on_devices_of_their_own():
        expected, losses, axes, devices = on_eight_devices()
        assert devices == 8
        assert losses == pytest.approx(expected, abs=1e-5)
        assert losses[0] != losses[-1]
        cut = {path: spec for path, (spec, _, _) in axes.items() if any(spec)}
        attention, block = "block_0/attention", "block_0"
        into_heads = [None, "model", None]
        assert cut == {
            f"{attention}/query/kernel": into_heads,
            f"{attention}/key/kernel": into_heads,
            f"{attention}/value/kernel": into_heads,
            f"{attention}/query/bias": ["model", None],
            f"{attention}/key/bias": ["model", None],
            f"{attention}/value/bias": ["model", None],
            f"{attention}/attention_output/kernel": ["model", None, None],
            f"{attention}/forget_gate/kernel": [None, "model"],
            f"{attention}/features/sigma": ["model", None],
            f"{attention}/features/random_projection_pool/projection": [
                "model",
                None,
                None,
            ],
            f"{attention}/features/random_projection_pool/pool": [
                "model",
                None,
                None,
                None,
            ],
            f"{block}/expand/kernel": [None, "model"],
            f"{block}/contract/kernel": ["model", None],
        }
        for spec, shape, shard in axes.values():
            halves = [2 if axis == "model" else 1 for axis in spec]
            assert [s // n for s, n in zip(shape, halves, strict=True)] == shard
