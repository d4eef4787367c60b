"""Batches that continue each other, without TensorFlow."""

import itertools
import math

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_rfa.callbacks import BackupAndResume
from keras_rfa.text import TokenRows

CORPORA = st.integers(2, 80).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(1, n - 1), st.integers(1, 12))
)


def corpus(n):
    """Returns different tokens, so that each tells where it is from."""
    return np.arange(1, n + 1)


def variable(number=0):
    return keras.Variable(number, dtype="int32", trainable=False)


@given(CORPORA)
def test_every_token_but_the_first_is_a_label_once(sizes):
    n, batch_size, length = sizes
    batches = TokenRows(corpus(n), batch_size, length)
    labels, counted = [], 0
    for inputs, next_tokens, weights in batches:
        for array, dtype in (
            (inputs, "int32"),
            (next_tokens, "int32"),
            (weights, "float32"),
        ):
            assert array.shape == (batch_size, length)
            assert array.dtype == dtype
        np.testing.assert_array_equal(weights, next_tokens > 0)
        np.testing.assert_array_equal(weights, inputs > 0)
        real = weights > 0
        np.testing.assert_array_equal(next_tokens[real], inputs[real] + 1)
        labels += next_tokens[real].tolist()
        counted += 1
    assert sorted(labels) == list(range(2, n + 1))
    assert counted == len(batches)
    # As few as there can be, for rows that differ by one token at most.
    longest = math.ceil((n - 1) / batch_size)
    assert counted == len(batches) == math.ceil(longest / length)


@given(CORPORA)
def test_a_row_continues_the_row_before(sizes):
    n, batch_size, length = sizes
    batches = TokenRows(corpus(n), batch_size, length)
    rows = np.concatenate([inputs for inputs, *_ in batches], axis=1)
    joined = []
    for row in rows:
        size = int((row > 0).sum())
        assert (row[size:] == 0).all()
        joined += row[:size].tolist()
    assert joined == list(range(1, n))


@given(CORPORA, st.integers(1, 7))
def test_epochs_of_a_part_read_on_around_the_corpus(sizes, steps):
    n, batch_size, length = sizes
    epoch = variable()
    batches = TokenRows(
        corpus(n), batch_size, length, epoch=epoch, batches_per_epoch=steps
    )
    whole = len(TokenRows(corpus(n), batch_size, length))
    read = []
    for number in range(-(-whole * batch_size // steps)):
        epoch.assign(number)
        batches.on_epoch_begin()
        assert len(batches) == steps
        read += [inputs for inputs, *_ in batches]
    rows = np.concatenate(read[: whole * batch_size], axis=1)
    for number, row in enumerate(rows):
        tokens = row[row > 0].tolist()
        # Each row reads all of the corpus, from where it began.
        first = tokens[0] - 1
        assert tokens == [*range(first + 1, n), *range(1, first + 1)], number
    assert len({row[0] for row in rows}) == batch_size


def segments(batches):
    return sorted(
        tuple(row) for inputs, *_ in batches for row in inputs.tolist()
    )


def read(batches):
    return [[array.tolist() for array in batch] for batch in batches]


@given(CORPORA, st.integers(0, 3))
def test_shuffled_segments_are_the_same_ones(sizes, seed):
    n, batch_size, length = sizes
    plain = TokenRows(corpus(n), batch_size, length)
    mixed = TokenRows(corpus(n), batch_size, length, shuffle=True, seed=seed)
    for _ in range(2):
        mixed.on_epoch_begin()
        assert segments(mixed) == segments(plain)
        mixed.on_epoch_end()


@pytest.mark.parametrize("steps", [None, 3])
def test_the_order_depends_on_seed_and_epoch_alone(steps):
    def order(seed, epochs):
        epoch = variable()
        batches = TokenRows(
            corpus(101),
            4,
            5,
            shuffle=True,
            seed=seed,
            epoch=epoch,
            batches_per_epoch=steps,
        )
        seen = {}
        for number in epochs:
            epoch.assign(number)
            batches.on_epoch_begin()
            seen[number] = read(batches)
            batches.on_epoch_end()
        return seen

    unbroken = order(1, range(4))
    for a, b in itertools.combinations(unbroken.values(), 2):
        assert a != b
    assert order(1, [2]) == {2: unbroken[2]}
    assert order(1, [3, 2]) == {3: unbroken[3], 2: unbroken[2]}
    assert order(2, [2]) != {2: unbroken[2]}


def test_parts_of_shuffled_passes_leave_nothing_out():
    epoch = variable()
    batches = TokenRows(
        corpus(101), 4, 5, shuffle=True, epoch=epoch, batches_per_epoch=3
    )
    seen = []
    for number in range(5):
        epoch.assign(number)
        batches.on_epoch_begin()
        seen += [inputs for inputs, *_ in batches]
    expected = segments(TokenRows(corpus(101), 4, 5))
    for whole in range(3):  # passes of 5 batches
        part = seen[5 * whole : 5 * whole + 5]
        assert segments([(x,) for x in part]) == expected


def test_works_follow_one_another():
    works = [np.array([5, 6], "uint8"), [7], np.zeros(0), (8, 9)]
    (batch,) = TokenRows(works, 1, 4)
    assert [array.tolist() for array in batch] == [
        [[5, 6, 7, 8]],
        [[6, 7, 8, 9]],
        [[1, 1, 1, 1]],
    ]


class Sums(keras.layers.Layer):
    """Adds what it reads to what it carries, to see the order in `fit`."""

    def build(self, shape):
        self.total = self.add_weight(
            shape=(4,), initializer="zeros", trainable=False, name="total"
        )
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, ids):
        ids = keras.ops.cast(ids, "float32")
        # It depends on the order of the batches.
        self.total.assign(2 * self.total % 997 + keras.ops.sum(ids, axis=1))
        return ids[..., None] * self.scale * keras.ops.ones(50)


def trained(batches, **options):
    model = keras.Sequential([keras.Input(batch_shape=(4, 5)), Sums()])
    model.compile(
        keras.optimizers.SGD(0.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(batches, verbose=0, **options)
    return keras.ops.convert_to_numpy(model.layers[-1].total)


def test_fit_reads_batches_in_order():
    ids = np.random.default_rng(0).integers(1, 50, 100)
    total = np.zeros(4)
    for _ in range(2):
        for inputs, *_ in TokenRows(ids, 4, 5):
            total = 2 * total % 997 + inputs.sum(axis=1)
    batches = TokenRows(ids, 4, 5)
    seen = trained(batches, epochs=2, shuffle=False)
    np.testing.assert_array_equal(seen, total)


def test_shuffling_by_fit_is_refused():
    # Too many batches for the order to be right by chance.
    batches = TokenRows(corpus(400) % 49 + 1, 4, 5)
    # TensorFlow makes another error of it, with the same message.
    with pytest.raises(Exception, match="Pass `shuffle=False` to `fit`"):
        trained(batches)
    # The one that has all been read is no exception.
    trained(batches, shuffle=False, epochs=2)
    with pytest.raises(Exception, match="Pass `shuffle=False` to `fit`"):
        trained(batches)


class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_resumed_training_reads_what_it_would_have_read(tmp_path, shuffle):
    ids = np.random.default_rng(0).integers(1, 50, 101)

    def fit(*last):
        epoch = variable()
        batches = TokenRows(
            ids,
            4,
            5,
            shuffle=shuffle,
            epoch=epoch,
            batches_per_epoch=3,
        )
        backup = BackupAndResume(tmp_path / "backup", epoch=epoch)
        return trained(
            batches, epochs=5, shuffle=False, callbacks=[backup, *last]
        )

    expected = fit()
    # TensorFlow reads ahead: stop where an epoch ends.
    with pytest.raises(KeyboardInterrupt):
        fit(Stop())
    assert (tmp_path / "backup").exists()
    np.testing.assert_array_equal(fit(), expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ids": []}, "one token more than `batch_size`.*0 tokens"),
        ({"ids": [1, 2]}, "one token more than `batch_size`.*2 tokens"),
        ({"ids": [[], []]}, "one token more.*0 tokens"),
        ({"ids": [1.0, 2.0, 3.0]}, "integers of shape.*float"),
        ({"ids": np.ones((4, 2), int)}, r"integers of shape.*\(4, 2\)"),
        ({"ids": [np.ones((4, 2), int)] * 2}, r"integers of shape.*\(4, 2\)"),
        ({"ids": [True, True, True]}, "integers of shape.*bool"),
        ({"ids": [1, 2, 0, 4]}, "0 is padding.*from 0 to 4"),
        ({"ids": [1, 2, -3, 4]}, "0 is padding.*from -3 to 4"),
        ({"ids": np.array([1, 2, 2**31])}, "from 1 on.*2147483648"),
        ({"batch_size": 0}, "`batch_size` must be an integer"),
        ({"length": 2.5}, "`length` must be an integer"),
        ({"seed": -1}, "`seed` must be an integer"),
        ({"epoch": 3}, "`epoch` must be a variable"),
        ({"batches_per_epoch": 2}, "`batches_per_epoch` needs `epoch`"),
        (
            {"batches_per_epoch": 0, "epoch": variable()},
            "`batches_per_epoch` must be an integer",
        ),
    ],
)
def test_wrong_arguments(arguments, message):
    defaults = {"ids": corpus(9), "batch_size": 2, "length": 2}
    with pytest.raises(ValueError, match=message):
        TokenRows(**defaults | arguments)


def test_wrong_batches():
    batches = TokenRows(corpus(9), 2, 2)
    for index in (-1, 2):
        with pytest.raises(IndexError, match="There are 2 batches"):
            batches[index]
