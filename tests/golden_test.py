import pathlib

import numpy as np
import pytest
from keras import ops

from keras_rfa.ops import attention_weights, feature_map, linear_attention

FILES = sorted((pathlib.Path(__file__).parent / "golden").glob("*.npz"))


def assert_close(actual, expected):
    expected = np.asarray(expected)
    tolerance = 1e-4 * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(
        ops.convert_to_numpy(actual), expected, rtol=0, atol=tolerance
    )


@pytest.mark.parametrize("chunk_size", [None, 1, 7, 16])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_golden(path, chunk_size):
    kind, mode, _ = path.stem.split("-")
    data = np.load(path)
    causal = mode in ("causal", "gated")
    projection = data["sigma"][:, None] * data["projection"]

    def features(name):
        return feature_map(
            ops.convert_to_tensor(data[name]),
            ops.convert_to_tensor(projection),
            kind,
        )

    def attend(prefix, **arguments):
        gate = data[f"{prefix}gate_logits"] if mode == "gated" else None
        return linear_attention(
            features(f"{prefix}query"),
            features(f"{prefix}key"),
            ops.convert_to_tensor(data[f"{prefix}value"]),
            causal=causal,
            gate_logits=None if gate is None else ops.convert_to_tensor(gate),
            epsilon=float(data["epsilon"]),
            return_state=True,
            chunk_size=chunk_size,
            **arguments,
        )

    assert_close(features("query"), data["query_features"])
    assert_close(features("key"), data["key_features"])
    key_mask = ops.convert_to_tensor(data["key_mask"])
    output, state = attend("", key_mask=key_mask)
    assert_close(output, data["output"])
    for name in ("s", "z", "weight"):
        assert_close(state[name], data[name])
    if causal:
        output, state = attend("next_", initial_state=state)
        assert_close(output, data["next_output"])
        for name in ("s", "z", "weight"):
            assert_close(state[name], data[f"next_{name}"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_attention_weights_give_the_golden_outputs(path):
    _, mode, _ = path.stem.split("-")
    data = {k: ops.convert_to_tensor(v) for k, v in np.load(path).items()}
    weights = attention_weights(
        ops.cast(data["query_features"], "float32"),
        ops.cast(data["key_features"], "float32"),
        causal=mode in ("causal", "gated"),
        gate_logits=data.get("gate_logits"),
        key_mask=data["key_mask"],
        epsilon=float(data["epsilon"]),
    )
    output = ops.einsum("bhts,bshe->bthe", weights, data["value"])
    assert_close(output, data["output"])


def test_all_files_are_read():
    assert len(FILES) == 32
