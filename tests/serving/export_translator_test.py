"""SavedModels that translate, where keras_rfa is not installed."""

import numpy as np
import pytest
import tensorflow as tf
from exports import PIECES
from operations import BYTES, check_operations
from streaming_exports import (
    CACHE,
    LOOPS,
    TO_TEXT,
    ask_elsewhere,
    continued,
    load,
    prefill,
    step,
    texts_of,
    with_quick_noise,
)

import keras_rfa
from keras_rfa.export import export_language_model, export_translator
from keras_rfa.generation import generate
from keras_rfa.text import (
    ByteTokenizer,
    SentencePieceTokenizer,
    WordpieceTokenizer,
    learn_sentencepiece,
)

TEXTS = ["A splendid film", "dull", "\N{SNOWMAN} and", "x" * 50]
# Of the source, and beside bytes the start and the end of targets.
SOURCE, TARGET, START, END = 257, 259, 257, 258
MAX_LENGTH = 12
NOISE = 1  # a seed of weights of which texts have different translations


def make_translator(source=SOURCE, target=TARGET, attention="rfa", **options):
    model = keras_rfa.models.translator(
        source,
        target,
        num_layers=1,
        hidden_dim=16,
        num_heads=2,
        intermediate_dim=32,
        attention=attention,
        attention_options={"seed": 1},
        **options,
    )
    return with_quick_noise(model, NOISE)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    model = make_translator()
    path = tmp_path_factory.mktemp("translator") / "exported"
    export_translator(
        model,
        path,
        source_tokenizer=ByteTokenizer(max_length=20),
        target_tokenizer=ByteTokenizer(),
        start_token_id=START,
        end_token_id=END,
        max_length=MAX_LENGTH,
    )
    return model, path, load(path)


def logits_of(model, source):
    """Returns the function from a target to its logits."""
    # One shape for all: padding counts for nothing.
    row = np.zeros((1, 64), "int32")
    row[0, : len(source)] = source
    return lambda ids: model.predict_on_batch({"source": row, "target": ids})


@pytest.mark.parametrize("attention", ["rfa_gated", "linear", "softmax"])
def test_token_by_token_is_the_whole(attention, tmp_path):
    model = make_translator(23, 29, attention, share_embeddings=False)
    path = tmp_path / "exported"
    export_translator(
        model, path, start_token_id=2, end_token_id=3, max_length=70
    )
    served = load(path)
    assert served.keys() == {"prefill", "step"}
    random = np.random.default_rng(0)
    source = random.integers(1, 23, (3, 40)).astype("int32")
    target = random.integers(1, 29, (3, 70)).astype("int32")
    target[:, 0] = 2
    lengths = np.array([40, 31, 2])
    behind = np.arange(40) >= lengths[:, None]
    whole = model.predict_on_batch(
        {"source": np.where(behind, 0, source), "target": target}
    )
    found, state = prefill(served, np.where(behind, -5, source), lengths)
    np.testing.assert_allclose(found, whole[:, 0], atol=1e-4)
    for i in (1, 2):
        found, state = step(served, target[:, i : i + 1], state)
        np.testing.assert_allclose(found, whole[:, i], atol=1e-4)
    found, state = step(served, target[:, 3:68], state)  # more than a block
    np.testing.assert_allclose(found, whole[:, 67], atol=1e-4)
    found, _ = step(served, target[:, 68:69], state)
    np.testing.assert_allclose(found, whole[:, 68], atol=1e-4)
    check_operations(path, f"{LOOPS} {CACHE}")


def wanted_rows(model):
    rows = []
    for text in TEXTS:
        source = ByteTokenizer(max_length=20)(text).numpy()
        logits = logits_of(model, source)
        rows.append(continued(logits, [START], MAX_LENGTH, [END], 257)[1:])
    return rows


def test_texts_are_those_of_a_loop(exported):
    model, _, served = exported
    rows = wanted_rows(model)
    assert texts_of(served, TEXTS) == ByteTokenizer().detokenize(rows)
    assert len(set(map(tuple, rows))) > 1


def test_rows_do_not_depend_on_companions(exported):
    *_, served = exported
    together = texts_of(served, TEXTS)
    for text, row in zip(TEXTS, together, strict=True):
        assert texts_of(served, [text]) == [row]
    assert texts_of(served, ["", TEXTS[0], ""]) == ["", together[0], ""]
    assert texts_of(served, []) == []


def test_equal_answers_in_a_process_without_keras(exported):
    model, path, _ = exported
    source = ByteTokenizer()("A splendid film").numpy()
    texts, logits = ask_elsewhere(path, TEXTS, source)
    assert texts == ByteTokenizer().detokenize(wanted_rows(model))
    target = np.zeros((1, 64), "int32")
    target[0, :2] = START, 1
    whole = logits_of(model, source)(target)
    np.testing.assert_allclose(np.squeeze(logits), whole[0, :2], atol=1e-4)
    check_operations(path, f"{LOOPS} {TO_TEXT} {BYTES}")


def test_what_does_not_fit_is_an_error(exported):
    *_, served = exported
    _, state = prefill(served, [[1, 2]], [2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="0 to 256"):
        prefill(served, [[1, 257]], [2])
    with pytest.raises(tf.errors.InvalidArgumentError, match="0 to 258"):
        step(served, [[259]], state)
    with pytest.raises(tf.errors.InvalidArgumentError, match="columns"):
        prefill(served, [[1, 2]], [3])
    with pytest.raises(tf.errors.InvalidArgumentError, match="an entry for"):
        step(served, [[1], [2]], state)


def test_batches_of_nothing(exported):
    *_, served = exported
    logits, state = prefill(served, np.zeros((2, 0)), [0, 0])
    assert logits.shape == (2, TARGET)
    _, state = prefill(served, np.zeros((0, 0)), [])
    logits, _ = step(served, np.zeros((0, 1)), state)
    assert logits.shape == (0, TARGET)


def test_sentence_pieces_to_words(tmp_path):
    corpus = ["The library reads pictures.", "A small library, and a game."]
    source = SentencePieceTokenizer(
        learn_sentencepiece(corpus, 300), add_end=True
    )
    target = WordpieceTokenizer([*PIECES, "[START]", "[END]"])
    sizes = source.vocabulary_size, target.vocabulary_size
    model = make_translator(*sizes, "linear")
    path = tmp_path / "exported"
    start, end = len(PIECES), len(PIECES) + 1
    export_translator(
        model,
        path,
        source_tokenizer=source,
        target_tokenizer=target,
        start_token_id=start,
        end_token_id=end,
        max_length=MAX_LENGTH,
    )
    served = load(path)
    found = texts_of(served, corpus)
    ids = source(corpus).numpy()
    rows = generate(
        model,
        [[start], [start]],
        MAX_LENGTH,
        stop_token_ids=end,
        initial_state=model.get_initial_state(ids, MAX_LENGTH),
    )
    rows = [[i for i in row if i != end] for row in rows[:, 1:]]
    assert found == target.detokenize(rows)
    # With the tokens of sentence pieces by default.
    both = {"source_tokenizer": source, "target_tokenizer": source}
    with pytest.raises(ValueError, match="`target_tokenizer` has"):
        export_translator(model, tmp_path / "other", **both)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`start_token_id` must be a token"),
        ({"start_token_id": 2}, "`end_token_id` must be a token"),
        ({"start_token_id": 0}, "`start_token_id` must be from 1 to 28"),
        ({"max_length": 1}, "`max_length` must be an integer of at least 2"),
        ({"source_tokenizer": ByteTokenizer()}, "Pass both"),
        (
            dict.fromkeys(
                ("source_tokenizer", "target_tokenizer"), ByteTokenizer()
            ),
            "`source_tokenizer` has 257 ids and the model only 23",
        ),
    ],
)
def test_arguments_that_do_not_fit(options, message, tmp_path):
    model = make_translator(23, 29)
    with pytest.raises(ValueError, match=message):
        export_translator(model, tmp_path / "exported", **options)
    assert list(tmp_path.iterdir()) == []


def test_models_of_the_other_kind(tmp_path):
    model = make_translator(23, 29)
    with pytest.raises(ValueError, match="`export_translator`"):
        export_language_model(model, tmp_path / "exported")
    other = keras_rfa.models.language_model(
        23, num_layers=1, hidden_dim=8, num_heads=1, intermediate_dim=8
    )
    with pytest.raises(ValueError, match="`export_language_model`"):
        export_translator(other, tmp_path / "exported")
