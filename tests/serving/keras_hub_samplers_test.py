"""Generating with the samplers of keras_hub."""

import keras
import numpy as np
import pytest
from keras_hub import samplers

from keras_rfa import layers, models
from keras_rfa.generation import generate, stream

PROMPTS = [[5, 2, 9, 11], [7], [4, 21]]
SIZES = {
    "num_layers": 1,
    "hidden_dim": 16,
    "num_heads": 2,
    "intermediate_dim": 16,
}


@pytest.fixture(autouse=True)
def quick(quick_compilation):
    """There is much to compile, of which little runs."""


def with_large_weights(model):
    """Gives a model weights with which it is sure of little."""
    random = np.random.default_rng(2)
    weights = []
    for weight in model.weights:
        values = random.normal(size=weight.shape)
        if weight.name in ("beta", "bias"):
            values *= 0
        elif weight.name == "gamma":
            values = np.full(weight.shape, 0.5)
        elif weight.name == "embeddings":
            values *= 0.5
        weights.append(values)
    model.set_weights(weights)
    return model


@pytest.fixture(scope="module")
def model():
    return with_large_weights(models.language_model(23, **SIZES))


@pytest.fixture(scope="module")
def translator():
    return with_large_weights(models.translator(19, 23, **SIZES))


def padded(rows, width=None):
    ids = np.zeros((len(rows), width or max(map(len, rows))), "int32")
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return ids


def log_probabilities(model, rows, source=None):
    """Returns those of the token after each row, read as a whole."""
    count = len(rows)
    # Of one size, to be compiled once.
    ids = padded([*rows, *[[0]] * (5 - count)], 32)
    if source is not None:
        ids = {"source": padded([source] * 5), "target": ids}
    logits = model.predict_on_batch(ids).astype("float64")
    logits = np.stack([logits[i, len(row) - 1] for i, row in enumerate(rows)])
    logits[:, 0] = -np.inf
    maxima = logits.max(axis=1, keepdims=True)
    sums = np.exp(logits - maxima).sum(axis=1, keepdims=True)
    return logits - maxima - np.log(sums)


def searched(model, prompt, max_length, num_beams, stops=(), source=None):
    """Returns the best of the beams, all read as a whole at each step."""
    beams = [(0.0, list(prompt))]

    def is_done(row):
        new = row[len(prompt) :]
        return len(row) == max_length or (new and new[-1] in stops)

    while not all(is_done(row) for _, row in beams):
        candidates = [(score, row) for score, row in beams if is_done(row)]
        going = [(score, row) for score, row in beams if not is_done(row)]
        rows = [row for _, row in going]
        for (score, row), values in zip(
            going, log_probabilities(model, rows, source), strict=True
        ):
            candidates += [
                (score + value, [*row, token])
                for token, value in enumerate(values)
                if token
            ]
        beams = sorted(candidates, key=lambda x: -x[0])[:num_beams]
    return beams[0][1]


@pytest.mark.parametrize(
    ("max_length", "stops"),
    [
        # The beams of the first row would change order after its end.
        (6, []),
        # The third row goes on beside beams that have ended.
        (12, [11, 4]),
    ],
)
def test_beams_are_those_of_a_search_over_whole_sequences(
    model, max_length, stops
):
    options = {"stop_token_ids": stops}
    sampler = samplers.BeamSampler(num_beams=4)
    ids = generate(model, PROMPTS, max_length, sampler=sampler, **options)
    expected = [searched(model, row, max_length, 4, stops) for row in PROMPTS]
    assert ids.tolist() == padded(expected).tolist()
    greedy = generate(model, PROMPTS, max_length, **options)
    assert ids.tolist() != greedy.tolist()


def test_beams_after_a_state_and_by_name(model):
    first, state = generate(model, [[5, 2], [4, 7]], 6, return_state=True)
    ids = generate(model, first[:, -1:], 5, sampler="beam", initial_state=state)
    rows = np.concatenate([first, ids[:, 1:]], axis=1)
    expected = [searched(model, row, 10, 5) for row in first.tolist()]
    assert rows.tolist() == expected
    # With nothing to add there is nothing to search.
    ids = generate(model, [[5, 2]], 2, sampler="beam")
    assert ids.tolist() == [[5, 2]]


def test_beams_of_translations(translator):
    sources = [[3, 4, 5, 11, 6], [7, 2, 18]]
    state = translator.get_initial_state(padded(sources))
    ids = generate(
        translator,
        [[1], [1]],
        9,
        sampler=samplers.BeamSampler(num_beams=3),
        initial_state=state,
        stop_token_ids=[2],
    )
    expected = [
        searched(translator, [1], 9, 3, (2,), source) for source in sources
    ]
    assert ids.tolist() == padded(expected).tolist()


def test_one_choice_is_the_greedy_one(model):
    greedy = generate(model, PROMPTS, 12)
    for sampler in (
        samplers.GreedySampler(),
        samplers.TopKSampler(k=1),
        samplers.TopPSampler(p=1e-6),
        samplers.BeamSampler(num_beams=1),
    ):
        ids = generate(model, PROMPTS, 12, sampler=sampler)
        np.testing.assert_array_equal(ids, greedy)


def test_samples_are_among_the_best(model):
    sampler = samplers.TopKSampler(k=3)
    ids = generate(model, PROMPTS, 12, sampler=sampler, seed=3)
    assert ids.tolist() != generate(model, PROMPTS, 12).tolist()
    for prompt, row in zip(PROMPTS, ids.tolist(), strict=True):
        for end in range(len(prompt), 12):
            (values,) = log_probabilities(model, [row[:end]])
            assert row[end] in np.argsort(values)[-3:]


@pytest.mark.parametrize("sampler", ["top_k", samplers.TopPSampler(p=0.9)])
def test_seeds(model, sampler):
    def sample(seed=None):
        return generate(model, PROMPTS, 12, sampler=sampler, seed=seed).tolist()

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    assert sample() != sample()
    tokens = list(stream(model, [[5, 2]], 12, sampler=sampler, seed=1))
    ids = generate(model, [[5, 2]], 12, sampler=sampler, seed=1)
    np.testing.assert_array_equal(np.stack(tokens, axis=1), ids[:, 2:])


def test_the_seed_of_a_sampler_counts(model):
    def samples(seed):
        sampler = samplers.TopKSampler(k=5, seed=seed)
        return [
            generate(model, PROMPTS, 12, sampler=sampler).tolist()
            for _ in range(2)
        ]

    first, second = samples(1)
    assert first != second
    assert samples(1) == [first, second]
    assert samples(2) != [first, second]


class Without(samplers.Sampler):
    """A user's sampler, whose configuration says little."""

    def __init__(self, token):
        super().__init__()
        self.token = token

    def get_next_token(self, probabilities):
        columns = keras.ops.arange(keras.ops.shape(probabilities)[-1])
        allowed = keras.ops.where(columns == self.token, 0.0, probabilities)
        return keras.ops.argmax(allowed, axis=-1)


def test_samplers_of_a_user(model):
    greedy = generate(model, PROMPTS, 12)
    token = int(greedy[0, 6])
    ids = generate(model, PROMPTS, 12, sampler=Without(token))
    assert token not in ids[0, 4:]
    ids = generate(model, PROMPTS, 12, sampler=Without(0))
    np.testing.assert_array_equal(ids, greedy)


def test_programs_are_compiled_for_settings_not_objects(monkeypatch):
    model = with_large_weights(models.language_model(23, **SIZES))
    calls = []
    method = type(model).call_with_state

    def counted(self, *args, **kwargs):
        calls.append(args)
        return method(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "call_with_state", counted)

    def run(sampler):
        before = len(calls)
        generate(model, PROMPTS, 12, sampler=sampler, seed=1)
        return len(calls) - before

    if keras.backend.backend() == "torch":
        return
    assert run(samplers.TopKSampler(k=5))
    assert run(samplers.TopKSampler(k=5, seed=4)) == 0
    assert run("top_k") == 0
    assert run(samplers.TopKSampler(k=4))
    assert run(samplers.BeamSampler(num_beams=3))
    assert run(samplers.BeamSampler(num_beams=3)) == 0
    sampler = samplers.TopKSampler(k=4)
    sampler.temperature = 0.5
    assert run(sampler)


def test_what_beams_can_not_do(model):
    with pytest.raises(ValueError, match="returns no state"):
        generate(model, PROMPTS, 9, sampler="beam", return_state=True)
    with pytest.raises(ValueError, match="before it has ended"):
        stream(model, PROMPTS, 9, sampler="beam")
    sampler = samplers.BeamSampler(return_all_beams=True)
    with pytest.raises(ValueError, match="return_all_beams=True"):
        generate(model, PROMPTS, 9, sampler=sampler)

    def stateful(num_heads, key_dim, name, **options):
        return layers.RandomFeatureAttention(
            num_heads, key_dim, name=name, stateful=True, **options
        )

    carrying = models.language_model(
        23, attention=stateful, batch_size=3, **SIZES
    )
    with pytest.raises(ValueError, match="'attention' with stateful=True"):
        generate(carrying, PROMPTS, 9, sampler="beam")


def test_samplers_of_another_kind(model):
    sampler = samplers.ContrastiveSampler(k=5, alpha=0.6)
    with pytest.raises(ValueError, match="which contrastive and speculative"):
        generate(model, PROMPTS, 9, sampler=sampler)
