"""SavedModels that continue texts, where keras_rfa is not installed."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from exports import PIECES
from operations import BYTES, WORDPIECES, check_operations
from streaming_exports import (
    CACHE,
    LOOPS,
    TO_TEXT,
    ask_elsewhere,
    continued,
    load,
    make_language_model,
    prefill,
    step,
    texts_of,
)

from keras_rfa.export import export_language_model
from keras_rfa.generation import generate
from keras_rfa.text import (
    ByteTokenizer,
    SentencePieceTokenizer,
    WordpieceTokenizer,
    learn_sentencepiece,
)

TEXTS = ["A splendid film", "dull", "\N{SNOWMAN} and", "x" * 29, "y" * 70]
MAX_LENGTH = 30


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model = make_language_model(convolution=3, attention_options={"seed": 1})
    path = tmp_path_factory.mktemp("language_model") / "exported"
    tokenizer = ByteTokenizer()
    # A token that greedy choices come by late, so that a row ends early.
    rows = generate(model, tokenizer(TEXTS[:3]), MAX_LENGTH)
    _, stop = max(
        (first, int(token))
        for row, text in zip(rows, TEXTS[:3], strict=True)
        for token, first in zip(
            *np.unique(row[len(text.encode()) :], return_index=True),
            strict=True,
        )
    )
    export_language_model(
        model,
        path,
        tokenizer=tokenizer,
        max_length=MAX_LENGTH,
        stop_token_ids=stop,
    )
    return model, path, stop, load(path)


@pytest.mark.parametrize("attention", ["rfa_gated", "linear", "softmax"])
def test_token_by_token_is_the_whole(attention, tmp_path):
    model = make_language_model(23, attention, convolution=2)
    path = tmp_path / "exported"
    export_language_model(model, path, max_length=90)
    served = load(path)
    assert served.keys() == {"prefill", "step"}
    ids = np.random.default_rng(0).integers(1, 23, (3, 82)).astype("int32")
    whole = model.predict_on_batch(ids)
    # More than a block of 64, just as much as one, and less.
    lengths = np.array([72, 65, 2])
    behind = np.arange(72) >= lengths[:, None]
    found, state = prefill(served, np.where(behind, -5, ids[:, :72]), lengths)
    rows = np.arange(3)
    np.testing.assert_allclose(found, whole[rows, lengths - 1], atol=1e-4)
    assert found.dtype == "float32"
    for _ in range(3):
        found, state = step(served, ids[rows, lengths][:, None], state)
        np.testing.assert_allclose(found, whole[rows, lengths], atol=1e-4)
        lengths = lengths + 1
    # Several tokens, and none in the last row, whose state stays.
    several = [ids[i, n : n + 3].copy() for i, n in enumerate(lengths)]
    several[1][2:] = 0
    several[2][:] = 0
    found, state = step(served, several, state)
    lengths += [3, 2, 0]
    np.testing.assert_allclose(
        found[:2], whole[rows, lengths - 1][:2], atol=1e-4
    )
    found, state = step(served, ids[rows, lengths][:, None], state)
    np.testing.assert_allclose(found, whole[rows, lengths], atol=1e-4)
    check_operations(path, f"{LOOPS} {CACHE}")
    if attention != "softmax":
        return
    # Room for two blocks, and 90 tokens more.
    with pytest.raises(tf.errors.InvalidArgumentError, match="it is full"):
        step(served, np.ones((3, 2 * 64 + 1)), state)
    _, other = prefill(served, [[1]], [1])
    joined = {k: tf.concat([state[k], other[k]], axis=0) for k in state}
    with pytest.raises(tf.errors.InvalidArgumentError, match="same in all"):
        step(served, [[5]] * 4, joined)


def wanted_rows(model, stop):
    """Returns the tokens of the prompts, and of all."""
    prompts = [ByteTokenizer(MAX_LENGTH)(text).numpy() for text in TEXTS]
    return prompts, [
        continued(model.predict_on_batch, row, MAX_LENGTH, [stop])
        for row in prompts
    ]


def test_texts_are_those_of_a_loop_and_of_generate(exported):
    model, _, stop, served = exported
    found = texts_of(served, TEXTS)
    prompts, rows = wanted_rows(model, stop)
    assert found == ByteTokenizer().detokenize(rows)
    # Some end by the stop token, some by their length, and one at once.
    new = [len(x) - len(p) for x, p in zip(rows, prompts, strict=True)]
    assert max(new) > 0 == min(new)
    assert {len(row) < MAX_LENGTH for row in rows} == {False, True}, rows
    rest = texts_of(served, TEXTS, "continuation")
    assert rest[4] == ""
    assert found[:4] == [a + b for a, b in zip(TEXTS[:4], rest, strict=False)]
    tokenizer = ByteTokenizer(MAX_LENGTH)
    ids = generate(model, tokenizer(TEXTS), MAX_LENGTH, stop_token_ids=stop)
    for row, prompt, text in zip(ids, prompts, found, strict=True):
        new = row[len(prompt) :]
        row = [*prompt, *new[(new > 0) & (new != stop)]]
        assert tokenizer.detokenize(row) == [text]


def test_rows_do_not_depend_on_companions(exported):
    served = exported[-1]
    together = texts_of(served, TEXTS)
    for text, row in zip(TEXTS, together, strict=True):
        assert texts_of(served, [text]) == [row]
    assert texts_of(served, ["", TEXTS[0], ""]) == ["", together[0], ""]
    assert texts_of(served, []) == []


def test_equal_answers_in_a_process_without_keras(exported):
    model, path, stop, _ = exported
    ids = ByteTokenizer()(TEXTS[0]).numpy()
    texts, logits = ask_elsewhere(path, TEXTS, ids)
    _, rows = wanted_rows(model, stop)
    assert texts == ByteTokenizer().detokenize(rows)
    whole = model.predict_on_batch(np.append(ids, 1)[None])
    np.testing.assert_allclose(np.squeeze(logits), whole[0, -2:], atol=1e-4)
    check_operations(path, f"{LOOPS} {TO_TEXT} {BYTES}")


def sample(served, texts, most, temperature, seeds):
    rows = len(texts)
    return (
        served["sample"](
            text=tf.constant(texts),
            max_new_tokens=tf.constant(np.broadcast_to(most, rows), tf.int32),
            temperature=tf.constant(
                np.broadcast_to(temperature, rows), tf.float32
            ),
            seed=tf.constant(seeds, tf.int32),
        )["continuation"]
        .numpy()
        .tolist()
    )


def test_options_of_a_row(exported):
    served = exported[-1]
    texts = ["dull"] * 5
    most, heat = [9, 9, 9, 9, 0], [0, 2, 2, 2, 2]
    rows = sample(served, texts, most, heat, [1, 2, 3, 2, 2])
    greedy = texts_of(served, texts, "continuation")[0].encode()
    assert greedy.startswith(rows[0])
    assert rows[1] == rows[3] != rows[2]
    assert rows[4] == b""
    assert sample(served, ["dull"], 9, 2, [3]) == rows[2:3]
    cold = sample(served, texts, 9, 1e-30, [1, 2, 3, 2, 2])
    assert cold == rows[:1] * 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (([-1], [1.0], [1]), "`max_new_tokens` must be finite and at least 0"),
        (([1], [-1.0], [1]), "`temperature` must be finite and at least 0"),
        (([1], [np.nan], [1]), "`temperature` must be finite and at least 0"),
        (([1, 2], [1.0], [1]), "`max_new_tokens` must have an entry for each"),
        (([1], [1.0], []), "`seed` must have an entry for each text"),
    ],
)
def test_options_that_do_not_fit_are_an_error(exported, options, message):
    most, temperature, seed = options
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        exported[-1]["sample"](
            text=tf.constant(["dull"]),
            max_new_tokens=tf.constant(most, tf.int32),
            temperature=tf.constant(temperature, tf.float32),
            seed=tf.constant(seed, tf.int32),
        )


def test_what_does_not_fit_is_an_error(exported):
    served = exported[-1]
    _, state = prefill(served, [[1, 2]], [2])
    for ids in ([[1, 257]], [[-1, 2]]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="0 to 256"):
            prefill(served, ids, [2])
        with pytest.raises(tf.errors.InvalidArgumentError, match="0 to 256"):
            step(served, ids, state)
    for lengths in ([3], [-1]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="columns"):
            prefill(served, [[1, 2]], lengths)
    with pytest.raises(tf.errors.InvalidArgumentError, match="each row"):
        prefill(served, [[1, 2]], [2, 2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="ends of a row"):
        prefill(served, [[1, 0, 2]], [3])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"`state_.*` must have an entry"
    ):
        step(served, [[1], [2]], state)
    name = next(name for name in state if name.endswith("_s"))
    broken = {**state, name: state[name] * np.nan}
    with pytest.raises(tf.errors.InvalidArgumentError, match="no numbers"):
        step(served, [[1]], broken)


def test_batches_of_nothing(exported):
    served = exported[-1]
    logits, state = prefill(served, np.zeros((2, 0)), [0, 0])
    assert logits.shape == (2, 257)
    _, state = prefill(served, np.zeros((0, 0)), [])
    logits, state = step(served, np.zeros((0, 1)), state)
    assert logits.shape == (0, 257)
    assert {x.shape[0] for x in state.values()} == {0}


def test_a_stateful_model_of_half_precision(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = make_language_model(23, stateful=True, batch_size=2)
    finally:
        keras.config.set_dtype_policy("float32")
    ids = np.random.default_rng(0).integers(1, 23, (3, 9))
    path = tmp_path / "exported"
    export_language_model(model, path)
    served = load(path)
    found, state = prefill(served, ids, [9, 9, 9])
    assert found.dtype == "float32"
    assert {x.shape[0] for x in state.values()} == {3}
    plain = make_language_model(23)
    for layer, other in zip(model.layers, plain.layers, strict=True):
        other.set_weights(layer.get_weights())
    np.testing.assert_allclose(
        found, plain.predict_on_batch(ids)[:, -1], atol=1e-4
    )
    check_operations(path, LOOPS)


def test_pieces_and_tokens_beside_those_of_the_tokenizer(tmp_path):
    tokenizer = WordpieceTokenizer(PIECES)
    start, stop = len(PIECES), len(PIECES) + 1
    model = make_language_model(len(PIECES) + 3)
    model.get_layer("embedding").embeddings.assign_add(
        0.3 * keras.random.normal((len(PIECES) + 3, 16), seed=3)
    )
    path = tmp_path / "exported"
    export_language_model(
        model,
        path,
        tokenizer=tokenizer,
        max_length=12,
        start_token_id=start,
        stop_token_ids=[stop],
    )
    served = load(path)
    texts = ["A film.", "", "splendid"]
    wanted = []
    for text in texts:
        ids = tokenizer(text).numpy()
        row = continued(
            model.predict_on_batch,
            [start, *ids[ids > 0]],
            12,
            [stop],
            len(PIECES),
        )
        wanted += tokenizer.detokenize(row[1:])
    assert texts_of(served, texts) == wanted
    check_operations(path, f"{LOOPS} {TO_TEXT} {WORDPIECES} StaticRegexReplace")
    # Draws have the probabilities of the model.
    count, heat = 2000, 3.0
    ids = np.array([[start, *tokenizer("film").numpy()]])
    scores = model.predict_on_batch(ids)[0, -1].astype("float64") / heat
    scores[[0, start, start + 2]] = -np.inf
    expected = np.exp(scores - scores.max())
    expected /= expected.sum()
    drawn = sample(served, ["film"] * count, 1, heat, range(count))
    for i, piece in enumerate([*PIECES, "", ""]):
        if i in (0, start):
            continue
        ending = b"id" if piece == "##id" else f" {piece}".encode()
        share = drawn.count(ending if piece else b"") / count
        bound = 4 * np.sqrt(expected[i] * (1 - expected[i]) / count) + 1e-3
        assert abs(share - expected[i]) <= bound, (piece, share, expected[i])


def test_sentence_pieces_keep_their_spaces(tmp_path):
    corpus = ["The library reads pictures.", "A small library, and a game."]
    tokenizer = SentencePieceTokenizer(
        learn_sentencepiece(corpus, 300), add_start=True
    )
    model = make_language_model(tokenizer.vocabulary_size, "linear")
    path = tmp_path / "exported"
    export_language_model(model, path, tokenizer=tokenizer, max_length=12)
    served = load(path)
    for text in (corpus[0][:11], ""):
        row = continued(
            model.predict_on_batch, tokenizer(text).numpy(), 12, [3]
        )
        assert texts_of(served, [text]) == tokenizer.detokenize([row])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 0}, "`max_length` must be an integer of at least 1"),
        ({"stop_token_ids": [0]}, r"`stop_token_ids` must be from 1 to 22"),
        ({"start_token_id": 23}, r"`start_token_id` must be from 1 to 22"),
        ({"start_token_id": 1.5}, r"`start_token_id` must be from 1 to 22"),
        ({"tokenizer": ByteTokenizer()}, "257 ids and the model only 23"),
        ({"tokenizer": lambda texts: texts}, "method `to_text`"),
    ],
)
def test_arguments_that_do_not_fit(options, message, tmp_path):
    model = make_language_model(23)
    with pytest.raises(ValueError, match=message):
        export_language_model(model, tmp_path / "exported", **options)
    assert list(tmp_path.iterdir()) == []


def test_models_that_do_not_fit(tmp_path):
    ids = keras.Input((None,), dtype="int32")
    plain = keras.Model(ids, keras.layers.Embedding(9, 9)(ids))
    with pytest.raises(ValueError, match="`call_with_state`"):
        export_language_model(plain, tmp_path / "exported")
