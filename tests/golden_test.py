import pathlib

import numpy as np
import pytest
from keras import ops

from keras_rfa.ops import attention_weights, feature_map, linear_attention
from keras_rfa.testing import assert_close, compiled

pytestmark = pytest.mark.usefixtures("quick_compilation")

FILES = sorted((pathlib.Path(__file__).parent / "golden").glob("*.npz"))
SUMS = ("s", "z", "weight")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden(path):
    kind, mode, _ = path.stem.split("-")
    data = dict(np.load(path))
    causal = mode in ("causal", "gated")
    projection = data["sigma"][:, None] * data["projection"]
    epsilon = float(data["epsilon"])

    def features(data, name):
        return feature_map(data[name], data["final"], kind)

    def attend(data, prefix, chunk_size, **arguments):
        return linear_attention(
            features(data, f"{prefix}query"),
            features(data, f"{prefix}key"),
            data[f"{prefix}value"],
            causal=causal,
            gate_logits=data.get(f"{prefix}gate_logits"),
            epsilon=epsilon,
            return_state=True,
            chunk_size=chunk_size,
            **arguments,
        )

    def everything(data):
        results = {}
        for chunk_size in (None, 1, 7, 16):
            output, state = attend(
                data, "", chunk_size, key_mask=data["key_mask"]
            )
            results[chunk_size] = {"output": output, **pick(state)}
            if causal:
                output, state = attend(
                    data, "next_", chunk_size, initial_state=state
                )
                results[chunk_size] |= {
                    "next_output": output,
                    **pick(state, "next_"),
                }
        features_of = {
            f"{name}_features": features(data, name)
            for name in ("query", "key")
        }
        return features_of, list(results.values())

    def pick(state, prefix=""):
        return {prefix + name: state[name] for name in SUMS}

    inputs = {**data, "final": projection}
    del inputs["epsilon"]
    actual, for_each_chunk_size = compiled(everything)(inputs)
    assert_close("features", actual, {name: data[name] for name in actual})
    for chunk_size, results in zip(
        (None, 1, 7, 16), for_each_chunk_size, strict=True
    ):
        expected = {name: data[name] for name in results}
        assert_close(f"chunk_size={chunk_size}", results, expected)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_attention_weights_give_the_golden_outputs(path):
    _, mode, _ = path.stem.split("-")
    data = dict(np.load(path))
    epsilon = float(data.pop("epsilon"))

    def attend(data):
        weights = attention_weights(
            ops.cast(data["query_features"], "float32"),
            ops.cast(data["key_features"], "float32"),
            causal=mode in ("causal", "gated"),
            gate_logits=data.get("gate_logits"),
            key_mask=data["key_mask"],
            epsilon=epsilon,
        )
        return ops.einsum("bhts,bshe->bthe", weights, data["value"])

    assert_close("output", compiled(attend)(data), data["output"])


def test_all_files_are_read():
    assert len(FILES) == 32
