"""That generating gives what the model, read as a whole, would choose."""

import gc
import weakref

import keras
import numpy as np
import pytest
from own_model import built, continued, padded, whole_logits

from keras_rfa.generation import (
    Temperature,
    generate,
    load_state,
    save_state,
    stream,
)


def test_greedy_is_the_choice_of_the_model_on_the_whole(model, prompts):
    expected = [continued(model, row, 20) for row in prompts]
    # Otherwise little could go wrong.
    assert len(set(expected[0])) > 5
    ids = generate(model, prompts, 20)
    assert ids.dtype == "int32"
    assert ids.tolist() == expected


def test_rows_do_not_depend_on_each_other(model, prompts):
    ids = generate(model, prompts, 20)
    for row, prompt in zip(ids, prompts, strict=True):
        assert generate(model, [prompt], 20).tolist() == [row.tolist()]


def test_prompts_may_be_arrays(model, prompts):
    expected = generate(model, prompts, 9)
    for same in (
        padded(prompts),
        padded(prompts).astype("int64"),
        [np.asarray(row, "uint8") for row in prompts],
        keras.ops.convert_to_tensor(padded(prompts)),
        tuple(map(tuple, prompts)),
    ):
        np.testing.assert_array_equal(generate(model, same, 9), expected)


@pytest.mark.parametrize("length", [15, 16, 17, 18, 40])
def test_long_prompts_are_read_in_blocks(model, monkeypatch, length):
    monkeypatch.setattr("keras_rfa.generation.prefill.BLOCK", 16)
    row = np.random.default_rng(0).integers(1, 23, length).tolist()
    (ids,) = generate(model, [row], length + 3)
    assert ids.tolist() == continued(model, row, length + 3)


def test_a_stop_token_ends_its_row(model, prompts):
    free = [continued(model, row, 16) for row in prompts]
    # Of the first row; it is also in its prompt, where it does not count.
    stop = next(x for x in free[0][len(prompts[0]) :] if x in prompts[0])
    other = free[1][1]
    expected = [continued(model, row, 16, (stop, other)) for row in prompts]
    assert len({len(row) for row in expected}) > 1
    ids = generate(model, prompts, 16, stop_token_ids=[stop, other])
    np.testing.assert_array_equal(ids, padded(expected))
    (alone,) = generate(model, prompts[:1], 16, stop_token_ids=stop)
    assert alone.tolist() == continued(model, prompts[0], 16, (stop,))


def test_a_prompt_of_max_length_stays_as_it_is(model, prompts):
    ids = generate(model, prompts, 5)
    assert ids[0].tolist() == prompts[0]
    assert ids[1].tolist() == continued(model, prompts[1], 5)
    np.testing.assert_array_equal(generate(model, prompts[:1], 5), ids[:1])
    assert list(stream(model, prompts[:1], 5)) == []


@pytest.mark.parametrize("through_file", [False, True])
def test_continuing_is_one_long_run(model, prompts, through_file, tmp_path):
    stop = continued(model, prompts[0], 9)[7]
    long = generate(model, prompts, 22)
    ids, state = generate(
        model, prompts, 9, stop_token_ids=[stop], return_state=True
    )
    lengths = np.count_nonzero(ids, axis=1)
    assert lengths.tolist() == [8, 9, 9]
    if through_file:
        save_state(state, tmp_path / "state.npz")
        state = load_state(tmp_path / "state.npz")
    last = [row[n - 1 : n] for row, n in zip(ids, lengths, strict=True)]
    rest, state = generate(
        model, last, 7, initial_state=state, return_state=True
    )
    # A state that has read the prompts is one that reads more of a prompt.
    longer = np.concatenate([rest[:, -1:], [[3, 1], [2, 2], [9, 4]]], axis=1)
    third = generate(model, longer, 8, initial_state=state)
    for i, n in enumerate(lengths):
        row = [*ids[i, :n], *rest[i, 1:]]
        assert row == long[i, : len(row)].tolist()
        expected = continued(model, [*row, *longer[i, 1:]], len(row) + 7)
        assert [*row, *third[i, 1:]] == expected


@pytest.mark.parametrize("max_length", [5, 8])
def test_state_of_a_row_that_is_done_stays(model, prompts, max_length):
    _, alone = generate(model, prompts[:1], max_length, return_state=True)
    _, beside = generate(
        model, [prompts[0], [1]], max_length, return_state=True
    )
    for a, b in zip(
        keras.tree.flatten(alone), keras.tree.flatten(beside), strict=True
    ):
        a, b = map(keras.ops.convert_to_numpy, (a, b))
        np.testing.assert_allclose(a[0], b[0], rtol=1e-4, atol=1e-5)


def test_streaming_gives_the_same_tokens(model, prompts):
    stop = continued(model, prompts[0], 12)[7]
    for options in ({"sampler": "greedy"}, {"sampler": "random", "seed": 5}):
        options["stop_token_ids"] = [stop]
        ids = generate(model, prompts, 12, **options)
        tokens = list(stream(model, prompts, 12, **options))
        assert all(x.shape == (3,) and x.dtype == "int32" for x in tokens)
        for i, row in enumerate(np.stack(tokens, axis=1)):
            new = ids[i, len(prompts[i]) :]
            new = new[new > 0]
            assert row.tolist() == [*new, *[0] * (len(row) - len(new))]


def test_equal_seeds_give_equal_samples(model, prompts):
    def sample(seed, sampler="random"):
        return generate(model, prompts, 30, seed=seed, sampler=sampler).tolist()

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    assert sample(None) != sample(None)
    assert sample(1) == sample(1, Temperature(1.0))
    assert sample(1) != sample(1, Temperature(3.0))
    first, second = Temperature(1.0, seed=4), Temperature(1.0, seed=4)
    runs = [sample(None, first) for _ in range(2)]
    assert runs == [sample(None, second) for _ in range(2)]
    assert runs[0] != runs[1]
    # A seed that is given does not depend on what was drawn before, nor does
    # what comes after depend on it.
    assert sample(1, first) == sample(1)
    assert sample(None, first) == sample(None, second)


def test_samples_have_the_probabilities_of_the_model(model):
    count, temperature = 4000, 5.0
    (logits,) = whole_logits(model, [[5, 2, 9]])
    exps = np.exp((logits - logits.max()) / temperature)
    exps[0] = 0
    expected = exps / exps.sum()
    ids = generate(
        model,
        np.tile([[5, 2, 9]], (count, 1)),
        4,
        sampler=Temperature(temperature),
        seed=7,
    )
    shares = np.bincount(ids[:, -1], minlength=len(expected)) / count
    assert shares[0] == 0
    # Four standard deviations.
    bounds = 4 * np.sqrt(expected * (1 - expected) / count)
    assert np.all(np.abs(shares - expected) <= bounds + 1e-3)


def test_low_temperatures_are_greedy(model, prompts):
    np.testing.assert_array_equal(
        generate(model, prompts, 12, sampler=Temperature(1e-4)),
        generate(model, prompts, 12),
    )


def test_padding_is_never_generated(prompts):
    model = built()
    model.logits.bias.assign([1000.0] + [0.0] * 22)
    for sampler in ("greedy", "random"):
        assert generate(model, prompts, 9, sampler=sampler).min() > 0


def test_new_weights_take_effect_at_once(prompts):
    model = built()
    first = generate(model, prompts, 12)
    calls = model.calls
    model.set_weights([-x for x in model.get_weights()])
    second = generate(model, prompts, 12)
    assert second.tolist() == [continued(model, x, 12) for x in prompts]
    assert first.tolist() != second.tolist()
    if keras.backend.backend() != "torch":
        assert model.calls == calls


def test_programs_are_compiled_once():
    model = built()
    generate(model, [[5, 2, 9, 11, 3], [7]], 12, sampler="random")
    calls = model.calls
    assert calls
    generate(model, [[5], [7, 2, 1]], 17, sampler="random", seed=3)
    generate(model, [[5, 2], [2] * 9], 14, sampler=Temperature(1.0))
    first = stream(model, [[5, 2], [2] * 9], 14)
    assert len(list(first)) == 12
    if keras.backend.backend() == "torch":
        return
    assert model.calls == calls + 1
    list(stream(model, [[5, 1, 4, 2], [2] * 9], 40))
    assert model.calls == calls + 1
    generate(model, [[5, 2], [2] * 9], 14, sampler=Temperature(2.0))
    assert model.calls > calls + 1


def test_programs_do_not_keep_a_model_alive(prompts):
    model = built(num_layers=1)
    generate(model, prompts, 7)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


@pytest.fixture
def mixed_bfloat16():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    yield
    keras.config.set_dtype_policy(before)


@pytest.mark.usefixtures("mixed_bfloat16")
def test_a_model_in_bfloat16(prompts):
    model = built()
    ids, state = generate(model, prompts, 9, return_state=True)
    assert ids.shape == (3, 9)
    assert ids.min() > 0
    rest = generate(model, ids[:, -1:], 5, initial_state=state)
    np.testing.assert_array_equal(
        np.concatenate([ids, rest[:, 1:]], axis=1), generate(model, prompts, 13)
    )
