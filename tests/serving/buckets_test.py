"""Batches of documents of like length."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  (its operations are in the graphs)
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_rfa.text import (
    bucket_batches,
)


def make_documents(lengths):
    """Documents whose tokens are all different, and their numbers."""
    start = np.cumsum([1, *lengths])
    rows = [np.arange(a, a + n) for a, n in zip(start, lengths, strict=False)]

    def generate():
        yield from ((row, i) for i, row in enumerate(rows))

    spec = (tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32))
    return rows, tf.data.Dataset.from_generator(generate, output_signature=spec)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 14), max_size=30),
    st.sampled_from([[12], [3, 12], [1, 4, 5, 12]]),
    st.sampled_from([1, 7, 24]),
    st.sampled_from([None, 5]),
    st.booleans(),
)
def test_buckets_lose_nothing(lengths, boundaries, tokens, shuffle, drop):
    rows, dataset = make_documents(lengths)
    batches = list(
        bucket_batches(
            dataset, boundaries, tokens, shuffle, 1, drop
        ).as_numpy_iterator()
    )
    shapes = {(max(1, tokens // n), n) for n in boundaries}
    seen = collections.defaultdict(list)
    for ids, label, weight in batches:
        assert ids.shape in shapes
        assert label.shape == weight.shape == ids.shape[:1]
        assert set(weight.tolist()) <= {0.0, 1.0}
        assert weight.any()
        for row, i, w in zip(ids, label, weight, strict=True):
            if w == 0:
                assert not row.any()
                assert i == 0
                continue
            document = rows[i][: boundaries[-1]]
            bound = next(n for n in boundaries if n >= len(document))
            assert ids.shape[1] == bound
            assert row[: len(document)].tolist() == document.tolist()
            assert not row[len(document) :].any()
            seen[bound].append(i)
    counts = collections.Counter(
        next(n for n in boundaries if n >= min(k, boundaries[-1]))
        for k in lengths
    )
    for bound, total in counts.items():
        size = max(1, tokens // bound)
        kept = total // size * size if drop else total
        assert len(set(seen[bound])) == len(seen[bound]) == kept
        if shuffle is None:
            assert seen[bound] == sorted(seen[bound])


def test_buckets_without_labels():
    _, dataset = make_documents([2, 3, 3, 1])
    batches = bucket_batches(dataset.map(lambda ids, _: ids), [2, 3], 6)
    ids = [x.tolist() for (x,) in batches.as_numpy_iterator()]
    assert ids == [
        [[3, 4, 5], [6, 7, 8]],
        [[1, 2], [9, 0], [0, 0]],
    ]


def test_shuffle_differs_between_epochs_and_obeys_the_seed():
    _, dataset = make_documents([1] * 50)

    def orders(seed):
        batches = bucket_batches(dataset, [1], 50, 50, seed)
        return [next(iter(batches))[1].numpy().tolist() for _ in range(2)]

    first, second = orders(3)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(50))
    assert orders(3)[0] == first
    assert orders(4)[0] != first


def test_shuffle_by_epoch_obeys_the_seed_and_the_epoch_alone():
    _, dataset = make_documents([1] * 50)
    epoch = tf.Variable(0, dtype=tf.int64)

    def order(seed, number, batches=None):
        epoch.assign(number)
        if batches is None:
            batches = bucket_batches(dataset, [1], 50, 50, seed, epoch=epoch)
        return next(iter(batches))[1].numpy().tolist()

    orders = [order(s, e) for s in (0, 3, 2**31) for e in (0, 1, 7)]
    assert all(sorted(x) == list(range(50)) for x in orders)
    assert len({tuple(x) for x in orders}) == len(orders)
    # Neither earlier epochs nor the global seed change anything, and the
    # global seed stays as it is.
    tf.random.set_seed(5)
    first = tf.random.uniform([])
    batches = bucket_batches(dataset, [1], 50, 50, 3, epoch=epoch)
    again = [order(3, e, batches) for e in (7, 0, 1)]
    assert again == [orders[5], orders[3], orders[4]]
    tf.random.set_seed(5)
    assert order(3, 1) == orders[4]
    assert tf.random.uniform([]) == first


class SetEpoch(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch.assign(epoch)


@pytest.mark.parametrize("steps", [None, 3, 2])
def test_fit_reads_the_order_of_the_epoch(steps):
    """There are 3 batches; an epoch of 2 ends in the midst of an order."""
    _, dataset = make_documents([1] * 12)
    epoch = tf.Variable(0, dtype=tf.int64)
    batches = bucket_batches(dataset, [1], 4, 12, 3, epoch=epoch)
    seen = []

    def note(ids, label, weight):
        label = tf.numpy_function(
            lambda x: (seen.append(x.tolist()), x)[1], [label], tf.int32
        )
        return ids, tf.ensure_shape(label, [4]), weight

    def orders(first_epoch):
        """Returns the batches of each epoch of `fit`."""
        data = batches.map(note)
        inputs = keras.Input((1,), dtype="int32")
        x = keras.layers.Embedding(20, 2)(inputs)
        model = keras.Model(inputs, keras.layers.Flatten()(x))
        model.compile(
            "sgd",
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=True,
        )
        starts = []

        class Start(keras.callbacks.Callback):
            def on_epoch_begin(self, number, logs=None):
                starts.append(len(seen))

        model.fit(
            data if steps is None else data.repeat(),
            epochs=4,
            initial_epoch=first_epoch,
            steps_per_epoch=steps,
            callbacks=[SetEpoch(epoch), Start()],
            verbose=0,
        )
        return [seen[i : i + (steps or 3)] for i in starts]

    def expected(number):
        epoch.assign(number)
        return [x[1].tolist() for x in batches.as_numpy_iterator()]

    unbroken, resumed = orders(0), orders(2)
    alone = [expected(i) for i in range(4)]
    if steps == 2:
        assert unbroken[0] + unbroken[1][:1] == alone[0]
        assert resumed[0] == alone[2][:2] != unbroken[2]
    else:
        assert unbroken == alone
        assert resumed == alone[2:]


def test_buckets_take_vector_labels_and_rows_of_one_length():
    ids, labels = np.ones((5, 4), "int64"), np.eye(5, 3, dtype="float32")
    dataset = tf.data.Dataset.from_tensor_slices((ids, labels))
    batches = list(bucket_batches(dataset, [2, 6], 12).as_numpy_iterator())
    assert [x.shape for x, _, _ in batches] == [(2, 6)] * 3
    assert batches[2][1].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert batches[2][2].tolist() == [1, 0]
    assert batches[2][0].tolist() == [[1, 1, 1, 1, 0, 0], [0] * 6]


def test_fit_and_evaluate_with_buckets():
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 12, 61)
    _, dataset = make_documents(lengths)
    dataset = dataset.map(lambda ids, i: (ids % 2 + 1, i % 2))
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(3, 4)(inputs)
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, keras.layers.Dense(2)(x))
    model.compile(
        "sgd",
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )
    batches = bucket_batches(dataset, [4, 8, 12], 32, 64, 0)
    history = model.fit(batches, epochs=2, verbose=0).history
    assert np.all(np.isfinite(history["loss"]))
    hits = [
        np.argmax(model(ids)[i], -1) == label[i]
        for ids, label, weight in batches.as_numpy_iterator()
        for i in np.flatnonzero(weight)
    ]
    assert len(hits) == 61
    results = model.evaluate(batches, verbose=0, return_dict=True)
    assert results["accuracy"] == pytest.approx(np.mean(hits))
    # As documented: the mean loss counts filler rows, as 0.
    losses, rows = 0.0, 0
    for ids, label, weight in batches.as_numpy_iterator():
        logits = keras.ops.convert_to_numpy(model(ids)).astype("float64")
        total = np.log(np.exp(logits).sum(-1))
        losses += (
            (total - logits[np.arange(len(label)), label]) * weight
        ).sum()
        rows += len(label)
    assert rows > 61
    assert results["loss"] == pytest.approx(losses / rows, rel=1e-4)


def test_a_boundary_is_traced_once():
    _, dataset = make_documents([2, 3, 2, 5, 1, 4, 2, 2, 2])
    traces = []

    @tf.function
    def count(ids):
        traces.append(ids.shape)
        return ids

    for ids, *_ in bucket_batches(dataset, [2, 5], 10):
        count(ids)
    assert sorted(map(tuple, traces)) == [(2, 5), (5, 2)]


@pytest.mark.parametrize(
    ("boundaries", "tokens", "message"),
    [
        ([], 8, r"len\(boundaries\)"),
        ([0, 4], 8, "boundaries=0"),
        ([4, 4], 8, "must be an integer of at least 5"),
        ([4, 2], 8, "boundaries=2"),
        ([2.5], 8, "boundaries=2.5"),
        ([4], 0, "tokens_per_batch=0"),
    ],
)
def test_bad_buckets(boundaries, tokens, message):
    _, dataset = make_documents([1, 2])
    with pytest.raises(ValueError, match=message):
        bucket_batches(dataset, boundaries, tokens)


def test_bad_epochs():
    _, dataset = make_documents([1, 2])
    epoch = tf.Variable(0, dtype=tf.int64)
    for bad in (0, tf.constant(0, tf.int64), tf.Variable(0), [epoch]):
        with pytest.raises(ValueError, match=r"must be a `tf\.Variable`"):
            bucket_batches(dataset, [4], 8, 2, 0, epoch=bad)
    for options in ({"seed": 0}, {"shuffle_buffer": 2}):
        with pytest.raises(ValueError, match="needs `shuffle_buffer` and"):
            bucket_batches(dataset, [4], 8, epoch=epoch, **options)


def test_batched_datasets_are_refused():
    _, dataset = make_documents([2, 2])
    with pytest.raises(ValueError, match="shuffle_buffer=0"):
        bucket_batches(dataset, [2], 2, shuffle_buffer=0)
    with pytest.raises(ValueError, match=r"`\(ids, label\)`"):
        bucket_batches(dataset.map(lambda x, y: (x, {"y": y})), [2], 2)
    with pytest.raises(ValueError, match="not batched"):
        bucket_batches(dataset.batch(2), [2], 2)
    with pytest.raises(ValueError, match=r"`\(ids, label\)`"):
        bucket_batches(dataset.map(lambda x, y: (x, y, y)), [2], 2)
    with pytest.raises(ValueError, match=r"`\(ids, label\)`"):
        bucket_batches(dataset.map(lambda x, y: {"ids": x}), [2], 2)
