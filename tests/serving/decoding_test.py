"""The benchmark of decoding, and the models that it compares."""

import importlib
import json

import numpy as np
import pytest

from keras_rfa.models import language_model, translator

TINY = ("--layers", 1, "--width", 8, "--vocabulary", 11, "--steps", 4)
SIZES = {
    "num_layers": 1,
    "hidden_dim": 8,
    "num_heads": 2,
    "intermediate_dim": 8,
    "dropout": 0.0,
}


def test_the_program(run_example, tmp_path, capsys):
    file, plot = tmp_path / "measured.json", tmp_path / "figure.png"
    words = [
        *TINY,
        *("--models", "language_model", "--batch-sizes", 2, "--runs", 1),
        *("--longest-without-cache", 6, "--json", file),
    ]
    few = ["--attentions", "rfa_gated", "keras_hub", "no_cache"]
    run_example("decoding", *words, *few, "--lengths", 6)
    (gated, hub, without) = json.loads(file.read_text())
    # One layer, one head of width 8, 2 * 64 features; caches of 6 slots.
    assert gated["bytes"] == {
        "s": 2 * 128 * 8 * 4,
        "z": 2 * 128 * 4,
        "weight": 2 * 4,
    }
    assert hub["bytes"] == {"cache": 2 * 2 * 6 * 8 * 4, "index": 2 * 4}
    assert without["bytes"] == {}
    capsys.readouterr()

    # What is in the file is not measured again.
    more = ["--resume", "--plot", plot]
    run_example("decoding", *words, *few, "--lengths", 6, 9, *more)
    first = json.loads(file.read_text())[:3]
    assert first == [gated, hub, without]
    printed = capsys.readouterr()
    assert "length 6" not in printed.err
    assert "| tokens | rfa_gated / keras_hub |" in printed.out
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.fixture
def caches(in_an_empty_folder):
    return importlib.import_module("keras_hub_cache")


def test_all_softmax_models_give_equal_logits(caches):
    model = language_model(11, attention="softmax", **SIZES)
    hub = language_model(11, attention=caches.KerasHubAttention, **SIZES)
    hub.set_weights(model.get_weights())
    ids = np.random.default_rng(0).integers(1, 11, (2, 6), "int32")
    expected = np.asarray(model(ids))
    np.testing.assert_allclose(hub(ids), expected, atol=1e-5)
    for decoder in model, hub, caches.WithoutCache(model):
        state = decoder.get_initial_state(2, max_length=6)
        for part in ids[:, :3], ids[:, 3:4], ids[:, 4:]:
            logits, state = decoder.call_with_state(part, state)
        last = np.asarray(logits)[:, -1]
        np.testing.assert_allclose(last, expected[:, -1], atol=1e-5)


def test_translators_with_the_cache_of_keras_hub(caches):
    hub = caches.KerasHubAttention
    roles = {"encoder": "softmax", "self": hub, "cross": hub}
    model = translator(11, 11, attention=roles, **SIZES)
    source, target = np.random.default_rng(0).integers(1, 11, (2, 2, 6))
    expected = model({"source": source, "target": target})
    state = model.get_initial_state(source, max_length=6)
    logits, state = model.call_with_state(target[:, :4], state)
    np.testing.assert_allclose(logits, expected[:, :4], atol=1e-5)
    logits, state = model.call_with_state(target[:, 4:], state)
    np.testing.assert_allclose(logits, expected[:, 4:], atol=1e-5)
