import zlib

import keras
import numpy as np
import pytest
from keras import ops

from keras_rfa.layers import RandomFeatureAttention, RandomProjectionPool

HEADS = 2
CRC = 1133791495
ROW = [0.8592363, 0.07227816, 0.1941069]
XLA = keras.backend.backend() != "torch"


def built(*sizes, **arguments):
    pool = RandomProjectionPool(*sizes, **arguments)
    pool.build()
    return pool


def matrices(pool):
    """Returns all of them, (heads, pool_size, D, d)."""
    first = ops.convert_to_numpy(pool.projection)[:, None]
    if pool.pool is None:
        return first
    return np.concatenate([first, ops.convert_to_numpy(pool.pool)], axis=1)


def test_bytes_come_again_from_the_seed():
    pool = built(HEADS, 4, 3, pool_size=5, seed=7)
    assert matrices(pool).shape == (HEADS, 5, 4, 3)
    # Another number means that files made until now can not be trained on.
    assert zlib.crc32(matrices(pool).tobytes()) == CRC


def test_orthogonal_matrices_come_again_from_the_seed():
    pool = built(HEADS, 4, 3, pool_size=5, orthogonal=True, seed=7)
    again = built(HEADS, 4, 3, pool_size=5, orthogonal=True, seed=7)
    np.testing.assert_array_equal(matrices(pool), matrices(again))
    # Processors may differ in the last digit.
    np.testing.assert_allclose(matrices(pool)[0, 0, 0], ROW, rtol=1e-5)


def test_first_matrices_do_not_depend_on_the_size_of_the_pool():
    small, large = (built(HEADS, 4, 3, size, seed=7) for size in (3, 9))
    np.testing.assert_array_equal(matrices(small), matrices(large)[:, :3])


def test_matrices_are_all_different():
    flat = matrices(built(HEADS, 4, 3, 50, seed=0)).reshape(-1, 12)
    assert len(np.unique(flat, axis=0)) == HEADS * 50


def test_python_seeds_a_pool_without_a_seed():
    seeds = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        seeds.append(RandomProjectionPool(HEADS, 4, 3).seed)
    assert seeds[0] == seeds[1] != seeds[2]


def test_entries_are_normal():
    entries = matrices(built(HEADS, 64, 16, seed=3)).ravel().astype("float64")
    error = entries.size**-0.5
    assert abs(entries.mean()) <= 5 * error
    assert abs((entries**2).mean() - 1) <= 5 * 2**0.5 * error
    assert abs((entries**4).mean() - 3) <= 5 * 96**0.5 * error


@pytest.mark.parametrize("features", [6, 20])
def test_rows_are_orthogonal_in_blocks_of_the_width(features):
    width = 8
    drawn = matrices(built(HEADS, features, width, orthogonal=True, seed=3))
    assert drawn.shape == (HEADS, 200, features, width)
    for start in range(0, features, width):
        block = drawn[:, :, start : start + width].astype("float64")
        products = block @ block.swapaxes(-1, -2)
        diagonal = np.eye(products.shape[-1], dtype=bool)
        np.testing.assert_allclose(products[..., ~diagonal], 0, atol=1e-5)


def test_orthogonal_rows_are_as_long_as_normal_ones():
    width = 8
    drawn = matrices(built(HEADS, width, width, orthogonal=True, seed=3))
    squares = (drawn.astype("float64") ** 2).sum(-1).ravel()  # chi-squared
    error = squares.size**-0.5
    assert abs(squares.mean() - width) <= 5 * (2 * width) ** 0.5 * error
    fourth = 12 * width**2 + 48 * width  # its fourth central moment
    spread = (fourth - (2 * width) ** 2) ** 0.5
    assert abs(squares.var() - 2 * width) <= 5 * spread * error


def test_rotations_are_uniform():
    width = 8
    drawn = matrices(built(HEADS, width, width, orthogonal=True, seed=3))
    directions = drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)
    entries = directions.reshape(-1, width, width).astype("float64")
    error = (width * len(entries)) ** -0.5
    # A plain QR decomposition gives its diagonal entries one sign.
    assert np.all(np.abs(entries.mean(0)) <= 5 * error)
    determinants = np.linalg.det(entries)
    assert abs(np.sign(determinants).mean()) <= 5 * len(entries) ** -0.5


class History(keras.layers.Layer):
    """Keeps what a pool draws at each step of the training."""

    def __init__(self, pool, steps):
        super().__init__()
        self.pool = pool
        self.steps = steps

    def build(self, shape):
        self.pool.build()
        self.drawn = self.add_weight(
            shape=(self.steps, self.pool.num_heads),
            initializer="zeros",
            trainable=False,
        )
        self.gain = self.add_weight(shape=(), initializer="ones")

    def call(self, step, training=None):
        indices = ops.cast(self.pool.draw(training), "float32")
        if training:
            row = ops.one_hot(ops.cast(step[0, 0], "int32"), self.steps)
            self.drawn.assign_add(row[:, None] * indices)
        return step * self.gain


def test_training_draws_for_each_step_and_head():
    steps, size = 400, 8
    pool = RandomProjectionPool(HEADS, 4, 3, pool_size=size, seed=0)
    history = History(pool, steps)
    model = keras.Sequential([keras.Input((1,)), history])
    model.compile("sgd", "mse", jit_compile=XLA)
    step = np.arange(steps, dtype="float32")[:, None]
    model.fit(step, 0 * step, batch_size=1, shuffle=False, verbose=0)
    drawn = ops.convert_to_numpy(history.drawn).astype(int)
    for head in range(HEADS):
        counts = np.bincount(drawn[:, head], minlength=size)
        spread = (steps / size * (1 - 1 / size)) ** 0.5
        assert counts.shape == (size,)
        assert np.all(np.abs(counts - steps / size) <= 5 * spread)
    pairs = {
        "two heads": (drawn[:, 0], drawn[:, 1]),
        "two steps": (drawn[:-1, 0], drawn[1:, 0]),
    }
    for name, (a, b) in pairs.items():
        share = (1 / size * (1 - 1 / size) / len(a)) ** 0.5
        assert abs(np.mean(a == b) - 1 / size) <= 5 * share, name


def test_matrices_are_taken_for_each_head():
    pool = built(3, 4, 2, pool_size=5, seed=0)
    for indices in ([0, 0, 0], [4, 1, 0], [1, 2, 3]):
        taken = pool.take(ops.convert_to_tensor(indices, "int32"))
        expected = matrices(pool)[np.arange(3), indices]
        np.testing.assert_array_equal(ops.convert_to_numpy(taken), expected)


def test_inference_always_has_the_first_matrices():
    pool = built(HEADS, 4, 3, seed=0)
    before = ops.convert_to_numpy(pool.seed_generator.state)
    for training in (False, None):
        indices = ops.convert_to_numpy(pool.draw(training))
        np.testing.assert_array_equal(indices, [0, 0])
    after = ops.convert_to_numpy(pool.seed_generator.state)
    np.testing.assert_array_equal(before, after)


def test_a_pool_of_one_trains_with_the_matrices_of_inference():
    pool = built(HEADS, 4, 3, pool_size=1, seed=0)
    for training in (True, False):
        indices = pool.draw(training)
        np.testing.assert_array_equal(ops.convert_to_numpy(indices), [0, 0])
        taken = ops.convert_to_numpy(pool.take(indices))
        np.testing.assert_array_equal(taken, matrices(pool)[:, 0])


X = np.random.default_rng(0).normal(size=(4, 6, 8)).astype("float32")
Y = np.random.default_rng(1).normal(size=(4, 6, 1)).astype("float32")


def attention_model(pool_size=200, seed=1, orthogonal=False, features=16):
    pool = RandomProjectionPool(
        HEADS, features, 4, pool_size, orthogonal, seed=seed
    )
    x = keras.Input((6, 8))
    y = RandomFeatureAttention(HEADS, 4, projection_pool=pool, name="rfa")(x, x)
    model = keras.Model(x, keras.layers.Dense(1)(y))
    return compile_model(model)


def compile_model(model):
    model.compile(keras.optimizers.SGD(0.5), "mse", jit_compile=XLA)
    return model


def train(model, steps):
    model.fit(
        np.tile(X, (steps, 1, 1)),
        np.tile(Y, (steps, 1, 1)),
        batch_size=len(X),
        shuffle=False,
        verbose=0,
    )
    return [ops.convert_to_numpy(w) for w in model.trainable_weights]


def test_training_goes_on_after_loading(tmp_path):
    model = attention_model()
    train(model, 3)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    expected = train(model, 2)

    loaded = keras.saving.load_model(tmp_path / "model.keras")
    other_seed = attention_model(seed=2)
    other_seed.load_weights(tmp_path / "model.weights.h5")
    for other in (loaded, other_seed):
        actual = train(compile_model(other), 2)
        for a, b in zip(actual, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

    # The test would notice matrices that are not the next ones.
    fresh_draws = keras.saving.load_model(tmp_path / "model.keras")
    pool = fresh_draws.get_layer("rfa").features.pool
    state = pool.seed_generator.state
    state.assign(ops.convert_to_tensor([1, 0], state.dtype))
    actual = train(compile_model(fresh_draws), 2)
    assert any(
        np.abs(a - b).max() > 1e-3
        for a, b in zip(actual, expected, strict=True)
    )


def test_files_do_not_hold_the_pool(tmp_path):
    model = attention_model(features=256)
    model.save(tmp_path / "model.keras")
    pool = model.get_layer("rfa").features.pool.pool
    size = (tmp_path / "model.keras").stat().st_size
    assert size < 0.15 * 4 * np.prod(pool.shape)


@pytest.mark.parametrize(
    "arguments", [{"pool_size": 100}, {"orthogonal": True}]
)
def test_another_pool_serves_but_does_not_train(tmp_path, arguments):
    model = attention_model()
    expected = model.predict(X, verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    other = attention_model(**arguments)
    other.load_weights(tmp_path / "model.weights.h5")
    actual = other.predict(X, verbose=0)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="were trained with a pool that seed"):
        train(other, 1)


def test_a_stateful_layer_does_not_train_with_another_pool():
    layer = RandomFeatureAttention(2, 4, stateful=True, seed=1)
    layer.build((3, 6, 8))
    layer.features.pool.can_train = False
    layer(X[:3, :6], X[:3, :6])
    with pytest.raises(ValueError, match="were trained with a pool that seed"):
        layer(X[:3, :6], X[:3, :6], training=True)


def test_a_pool_of_one_serves_the_weights_of_any_pool(tmp_path):
    model = attention_model()
    expected = model.predict(X, verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    other = attention_model(pool_size=1, seed=9)
    other.load_weights(tmp_path / "model.weights.h5")
    actual = other.predict(X, verbose=0)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_matrices_of_another_shape_are_an_error(tmp_path):
    attention_model(features=16).save_weights(tmp_path / "a.weights.h5")
    other = attention_model(features=8)
    with pytest.raises(ValueError, match=r"\(2, 16, 4\).*\(2, 8, 4\)"):
        other.load_weights(tmp_path / "a.weights.h5")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 0}, "Received: num_heads=0"),
        ({"num_features": 1.5}, "Received: num_features=1.5"),
        ({"key_dim": -1}, "Received: key_dim=-1"),
        ({"pool_size": "all"}, "Received: pool_size='all'"),
        ({"seed": -1}, "Received: seed=-1"),
        ({"seed": 2**31}, "Received: seed=2147483648"),
        ({"seed": 0.5}, "Received: seed=0.5"),
    ],
)
def test_errors(arguments, message):
    defaults = {"num_heads": 2, "num_features": 4, "key_dim": 3}
    with pytest.raises(ValueError, match=message):
        RandomProjectionPool(**{**defaults, **arguments})
