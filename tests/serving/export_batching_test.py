"""An answer does not depend on the documents it was asked with."""

import numpy as np
import pytest
import tensorflow as tf
from exports import CLASSES, MODELS, make_classifier, probabilities

from keras_rfa.export import export_classifier
from keras_rfa.text import ByteTokenizer


def load(model, path, tokenizer=None):
    export_classifier(model, tokenizer or ByteTokenizer(), CLASSES, path)
    return tf.saved_model.load(str(path)).signatures


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    return load(make_classifier(257), tmp_path_factory.mktemp("m") / "exported")


def ask(signature, ids, lengths):
    ids, lengths = np.asarray(ids, "int32"), np.asarray(lengths, "int32")
    answer = signature(token_ids=tf.constant(ids), lengths=tf.constant(lengths))
    return {name: value.numpy() for name, value in answer.items()}


def ask_a_batching_server(signature, requests, rows):
    """Puts requests together as TensorFlow Serving does.

    Columns that a request lacks are filled with its first id, and rows that
    the batch lacks with the first row of the last request. Outputs are cut
    into as many rows as each request had.
    """
    columns = max(ids.shape[1] for ids, _ in requests)
    ids = [
        np.pad(
            ids,
            [(0, 0), (0, columns - ids.shape[1])],
            constant_values=ids[0, 0],
        )
        for ids, _ in requests
    ]
    lengths = [lengths for _, lengths in requests]
    missing = rows - sum(map(len, lengths))
    ids += [ids[-1][:1]] * missing
    lengths += [lengths[-1][:1]] * missing
    outputs = ask(signature, np.concatenate(ids), np.concatenate(lengths))
    assert {len(output) for output in outputs.values()} == {rows}
    ends = np.cumsum([len(lengths) for _, lengths in requests])
    parts = {name: np.split(x, ends) for name, x in outputs.items()}
    return [
        {name: part[i] for name, part in parts.items()}
        for i in range(len(requests))
    ]


def draw_request(random, rows, columns):
    # Few different ones: a backend may compile for each.
    few = [length for length in (5, 130) if length <= columns]
    lengths = random.choice(few, rows).astype("int32")
    ids = random.integers(1, 257, (rows, columns)).astype("int32")
    # What stands behind a document may be anything, even no id at all.
    behind = np.arange(columns) >= lengths[:, None]
    ids[behind] = random.integers(-(2**31), 2**31, behind.sum())
    return ids, lengths


@pytest.mark.parametrize(
    "name", ["softmax", "rfa", "rfa_gated", "causal gated"]
)
def test_answers_do_not_depend_on_companions(name, tmp_path, quick_compilation):
    model = MODELS[name]()
    signature = load(model, tmp_path / "exported")["token_ids"]
    random = np.random.default_rng(0)
    shapes = [(1, 9), (3, 150), (1, 40), (1, 9)]
    requests = [draw_request(random, *shape) for shape in shapes]
    for order in ([0, 1, 2, 3], [3, 2]):
        chosen = [requests[i] for i in order]
        rows = max(4, sum(shapes[i][0] for i in order))
        answers = ask_a_batching_server(signature, chosen, rows)
        for (ids, lengths), answer in zip(chosen, answers, strict=True):
            for row, length in enumerate(lengths):
                alone = probabilities(model, ids[row : row + 1, :length])[0]
                np.testing.assert_allclose(
                    answer["probabilities"][row], alone, atol=1e-5
                )
                label = answer["label"][row].decode()
                assert label == CLASSES[alone.argmax()]
                names = [x.decode() for x in answer["class_names"][row]]
                assert names == CLASSES


def test_texts_do_not_depend_on_companions(served):
    texts = ["A splendid film.", ""]
    together = ask_texts(served, texts)
    for row, text in enumerate(texts):
        (alone,) = ask_texts(served, [text])
        np.testing.assert_allclose(together[row], alone, atol=1e-5)


def ask_texts(served, texts):
    answer = served["serving_default"](text=tf.constant(texts))
    return answer["probabilities"].numpy()


def test_an_invalid_companion_is_an_error_and_changes_no_answer(served):
    signature = served["token_ids"]
    valid = np.full((1, 7), 5), np.array([7])
    invalid = np.full((1, 7), 257), np.array([7])
    before = ask(signature, *valid)
    with pytest.raises(tf.errors.InvalidArgumentError, match="0 to 256"):
        ask_a_batching_server(signature, [valid, invalid], 2)
    after = ask(signature, *valid)
    np.testing.assert_array_equal(
        after["probabilities"], before["probabilities"]
    )


def test_ids_that_the_model_does_not_have_are_an_error(served):
    signature = served["token_ids"]
    for ids in ([[1, 257, 0]], [[1, -1, 0]]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="0 to 256"):
            ask(signature, ids, [2])
        # Behind the end of the document they are not read.
        answer = ask(signature, ids, [1])["probabilities"]
        alone = ask(signature, [[1, 0, 0]], [1])["probabilities"]
        np.testing.assert_array_equal(answer, alone)


def test_lengths_must_fit(served):
    signature = served["token_ids"]
    ids = [[1, 2, 3], [4, 5, 6]]
    for lengths in ([3, 4], [-1, 3]):
        with pytest.raises(
            tf.errors.InvalidArgumentError,
            match="`lengths` must be from 0 to the columns",
        ):
            ask(signature, ids, lengths)
    for lengths in ([3], [3, 3, 3]):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="an entry for each row"
        ):
            ask(signature, ids, lengths)
    with pytest.raises(tf.errors.InvalidArgumentError, match="each row"):
        ask(signature, ids[:1], [3, 3])


def test_a_batch_of_nothing_has_no_answers(served):
    answer = served["serving_default"](text=tf.constant([], tf.string))
    assert answer["probabilities"].shape == (0, 3)
    assert answer["class_names"].shape == (0, 3)
    assert answer["label"].shape == (0,)
    answer = ask(served["token_ids"], np.zeros((2, 0)), [0, 0])
    assert np.isfinite(answer["probabilities"]).all()
    answer = ask(served["token_ids"], np.full((2, 5), 9), [0, 0])
    assert np.isfinite(answer["probabilities"]).all()


def test_documents_are_cut_in_both_signatures(tmp_path):
    model = make_classifier(257)
    served = load(model, tmp_path / "exported", ByteTokenizer(max_length=4))
    ids = np.asarray(ByteTokenizer()(["splendid"]))
    wanted = probabilities(model, ids[:, :4])
    texts = tf.constant(["splendid"])
    found = served["serving_default"](text=texts)["probabilities"]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    for lengths, columns in ([8], 4), ([4], 4), ([3], 3):
        found = ask(served["token_ids"], ids, lengths)["probabilities"]
        wanted = probabilities(model, ids[:, :columns])
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    whole = probabilities(model, ids)
    assert np.abs(whole - probabilities(model, ids[:, :4])).max() > 1e-3
