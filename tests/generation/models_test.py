"""The models of the package: each attention, and translations."""

import keras
import numpy as np
import pytest
from own_model import continued, padded, varied

from keras_rfa import models
from keras_rfa.generation import generate, load_state, save_state, stream

SIZES = {
    "num_layers": 1,
    "hidden_dim": 16,
    "num_heads": 2,
    "intermediate_dim": 16,
}
ATTENTIONS = (
    "rfa",
    "rfa_arccos",
    "rfa_gated",
    "rfa_gated_arccos",
    "performer",
    "linear",
    "softmax",
)


def language_model(attention, **options):
    model = models.language_model(
        23, attention=attention, convolution=2, **SIZES, **options
    )
    return varied(model, seed=4)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_each_attention(attention, prompts, tmp_path):
    model = language_model(attention)
    expected = [continued(model, row, 16) for row in prompts]
    assert min(len(set(row)) for row in expected) > 3
    assert generate(model, prompts, 16).tolist() == expected

    # In three parts, the second after a file.
    # A softmax cache has room for the 4 columns of the longest prompt and the
    # 8 tokens after the shortest, and the 7 that follow.
    state = model.get_initial_state(len(prompts), max_length=19)
    first, state = generate(
        model, prompts, 9, initial_state=state, return_state=True
    )
    save_state(state, tmp_path / "state.npz")
    second, state = generate(
        model,
        first[:, -1:],
        4,
        initial_state=load_state(tmp_path / "state.npz"),
        return_state=True,
    )
    third = stream(model, second[:, -1:], 5, initial_state=state)
    third = np.stack(list(third), axis=1)
    rows = np.concatenate([first, second[:, 1:], third], axis=1)
    assert rows.tolist() == expected


def test_a_cache_that_is_too_small_is_refused(prompts):
    model = language_model("softmax")

    def run(room, max_length=9, **options):
        state = model.get_initial_state(3, max_length=room)
        return generate(
            model, prompts, max_length, initial_state=state, **options
        )

    # The others are read beside the 4 columns of the longest prompt, and the
    # shortest gets 8 tokens.
    np.testing.assert_array_equal(run(12), generate(model, prompts, 9))
    with pytest.raises(
        ValueError, match=r"room for 11 steps.* 4 to read and 8"
    ):
        run(11)
    _, state = run(12, return_state=True)
    with pytest.raises(ValueError, match=r"room for 0 steps.* 0 to .* and 1"):
        generate(model, [[1], [1], [1]], 2, initial_state=state)


def test_a_full_cache_is_not_taken_for_an_answer(prompts, monkeypatch):
    model = language_model("softmax")
    monkeypatch.setattr(type(model), "free_steps", lambda self, state: None)
    state = model.get_initial_state(3, max_length=20)
    with pytest.raises(ValueError, match=r"no numbers.*after 4 new tokens"):
        generate(model, prompts, 20, initial_state=state)
    tokens = stream(model, prompts, 20, initial_state=state)
    assert [next(tokens).shape for _ in range(4)] == [(3,)] * 4
    with pytest.raises(ValueError, match=r"no numbers.*after 4 new tokens"):
        next(tokens)


def translator(attention):
    model = models.translator(19, 23, attention=attention, **SIZES)
    return varied(model, seed=4)


def translated(model, source, max_length, stops=(), start=1):
    """Returns a translation, read anew for each token."""
    row = [start]
    while len(row) < max_length and row[-1] not in stops:
        inputs = {
            "source": padded([source, source]),
            "target": padded([row, [0] * 32]),
        }
        logits = model.predict_on_batch(inputs)[0, len(row) - 1]
        row.append(1 + int(np.argmax(logits[1:])))
    return row


@pytest.mark.parametrize("attention", ["rfa", "softmax"])
def test_translations(attention):
    model = translator(attention)
    sources = [[3, 4, 5, 11, 6, 9, 17], [7, 2, 18]]
    expected = [translated(model, row, 12) for row in sources]
    assert expected[0] != expected[1]
    state = model.get_initial_state(padded(sources), max_length=12)
    ids = generate(model, [[1], [1]], 12, initial_state=state)
    assert ids.tolist() == expected
    stop = expected[0][6]
    ids = generate(
        model, [[1], [1]], 12, initial_state=state, stop_token_ids=[stop]
    )
    expected = [translated(model, row, 12, [stop]) for row in sources]
    np.testing.assert_array_equal(ids, padded(expected))
    with pytest.raises(ValueError, match=r"get_initial_state\(source_ids"):
        generate(model, [[1], [1]], 12)


def test_a_stateful_model_generates_from_where_it_is_told():
    model = language_model("rfa", stateful=True, batch_size=2)
    prompts = np.asarray([[5, 2], [7, 3]])
    first = generate(model, prompts, 9)
    model.predict_on_batch(np.asarray([[5, 2, 1], [7, 3, 1]]))
    carried = [keras.ops.convert_to_numpy(x) for x in model.variables]
    np.testing.assert_array_equal(generate(model, prompts, 9), first)
    for before, after in zip(carried, model.variables, strict=True):
        np.testing.assert_array_equal(before, keras.ops.convert_to_numpy(after))
