import keras
import numpy as np
import pytest
from keras import ops

from keras_rfa.layers import RandomProjectionPool
from keras_rfa.ops import feature_map
from keras_rfa.ops.feature_maps import unit_vector
from keras_rfa.testing import (
    as_numpy,
    assert_close,
    compiled,
    differentiated,
    feature_map_reference,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

WIDTH = 8
SIGMA = np.linspace(0.5, 1.5, WIDTH)


def matrices(num_features, pools=1, orthogonal=False):
    """Returns 200 matrices for each of several seeds."""
    drawn = []
    for seed in range(pools):
        pool = RandomProjectionPool(
            1, num_features, WIDTH, orthogonal=orthogonal, seed=seed
        )
        pool.build()
        drawn += [as_numpy(pool.projection), as_numpy(pool.pool)[0]]
    return np.concatenate(drawn).astype("float32")


def estimates(q, k, projection, kind, normalize=True, sigma=SIGMA):
    """Returns φ(q)·φ(k) of each pair (rows) for each matrix (columns).

    The matrices are the heads of one call.
    """
    heads = len(projection)
    scale = np.tile(sigma, (heads, 1)).astype("float32")

    def call(q, k, projection, scale):
        features = [
            feature_map(
                ops.repeat(x[None, :, None, :], heads, axis=2),
                projection,
                kind,
                normalize,
                scale,
            )
            for x in (q, k)
        ]
        return ops.einsum("bthm,bthm->th", *features)

    return compiled(call)(q, k, projection, scale)


def pairs():
    q, k = np.random.default_rng(0).normal(size=(2, 6, WIDTH)) / WIDTH**0.5
    k[0] = q[0]
    return q.astype("float32"), k.astype("float32")


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def gaussian_kernel(q, k):
    difference = SIGMA * (unit(q) - unit(k))
    return np.exp(-(difference**2).sum(-1) / 2)


def exponential_kernel(q, k):
    return np.exp((SIGMA**2 * q * k).sum(-1))


def scaled_exponential_kernel(q, k):
    return np.exp((SIGMA**2 * q * k).sum(-1) / WIDTH**0.5)


def arccos_kernel(q, k):
    a, b = SIGMA * unit(q), SIGMA * unit(k)
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    cosine = np.clip((a * b).sum(-1) / lengths, -1, 1)
    angle = np.arccos(cosine)
    return lengths * (np.sin(angle) + (np.pi - angle) * cosine) / (2 * np.pi)


@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize(
    ("kind", "normalize", "kernel"),
    [
        ("gaussian", True, gaussian_kernel),
        ("gaussian", False, exponential_kernel),
        ("arccos", True, arccos_kernel),
        ("positive", True, scaled_exponential_kernel),
    ],
)
def test_mean_over_the_pool_is_the_kernel(kind, normalize, kernel, orthogonal):
    q, k = pairs()
    projection = matrices(32, orthogonal=orthogonal)
    samples = estimates(q, k, projection, kind, normalize)
    error = np.abs(samples.mean(1) - kernel(q.astype(float), k.astype(float)))
    standard_error = samples.std(1, ddof=1) / len(projection) ** 0.5
    assert np.all(error <= 5 * standard_error + 1e-6), (error, standard_error)


def test_gaussian_variance():
    q, k = (x[1:] for x in pairs())  # the first pair is equal: no variance
    samples = estimates(q, k, matrices(32, pools=10), "gaussian")
    square = ((SIGMA * (unit(q) - unit(k))) ** 2).sum(-1)
    expected = (1 - np.exp(-square)) ** 2 / (2 * 32)
    variance, error = variance_and_error(samples)
    assert np.all(np.abs(variance - expected) <= 5 * error)
    assert np.all(error <= 0.05 * expected)  # the test tells 25 % apart


def variance_and_error(samples):
    centred = samples - samples.mean(1, keepdims=True)
    variance = (centred**2).mean(1)
    fourth = (centred**4).mean(1)
    return variance, np.sqrt((fourth - variance**2) / samples.shape[1])


def test_orthogonal_matrices_have_less_variance():
    q, k = (x[1:] for x in pairs())
    variances = [
        variance_and_error(
            estimates(q, k, matrices(32, 10, orthogonal), "gaussian")
        )
        for orthogonal in (False, True)
    ]
    (plain, plain_error), (orthogonal, orthogonal_error) = variances
    assert np.all(orthogonal + 5 * orthogonal_error < plain - 5 * plain_error)


@pytest.mark.parametrize("kind", ["gaussian", "arccos", "positive", "elu"])
@pytest.mark.parametrize("normalize", [True, False])
def test_features_against_float64(kind, normalize):
    random = np.random.default_rng(0)
    x = random.normal(size=(2, 5, 3, WIDTH)).astype("float32")
    projection = random.normal(size=(3, 7, WIDTH)).astype("float32")
    scale = random.uniform(0.5, 1, size=(3, WIDTH)).astype("float32")

    def call(x, projection, scale):
        return feature_map(x, projection, kind, normalize, scale)

    actual = compiled(call)(x, projection, scale)
    expected = feature_map_reference(x, projection, kind, normalize, scale)
    assert_close(kind, actual, expected, 1e-5)


def test_scale_multiplies_the_matrix():
    random = np.random.default_rng(0)
    x = random.normal(size=(1, 4, 2, WIDTH)).astype("float32")
    projection = random.normal(size=(2, 3, WIDTH)).astype("float32")
    scale = np.tile(SIGMA, (2, 1)).astype("float32")
    apart = compiled(lambda x, w, s: feature_map(x, w, scale=s))
    together = compiled(lambda x, w: feature_map(x, w))
    assert_close(
        "scale",
        apart(x, projection, scale),
        together(x, projection * scale[:, None]),
        1e-5,
    )


@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-20, 1.0, 1e4, 1e30])
def test_unit_vectors_of_any_length(length):
    direction = unit(np.random.default_rng(0).normal(size=WIDTH))
    x = (length * direction).astype("float32")

    def total(x):
        y = unit_vector(x)
        return ops.sum(y * ops.cast(SIGMA, "float32")), y

    _, y, gradient, _ = compiled(differentiated(total, []))(x)
    assert_close("unit vector", y, direction if length else 0 * direction, 1e-5)
    assert np.all(np.isfinite(gradient))
    if length >= 1e-20:  # derivative of x/|x|
        projected = SIGMA - direction * (direction @ SIGMA)
        assert_close("gradient", gradient * length, projected, 1e-5)


@pytest.mark.parametrize("kind", ["gaussian", "arccos", "positive", "elu"])
@pytest.mark.parametrize("value", [0.0, 1e-20, 1e4])
def test_features_and_gradients_are_finite(kind, value):
    x = np.full((1, 1, 1, WIDTH), value, "float32")
    projection = matrices(16)[:1]

    def total(x):
        features = feature_map(x, projection, kind)
        return ops.sum(ops.square(features)), features

    results = compiled(differentiated(total, []))(x)
    for array in keras.tree.flatten(results):
        assert np.all(np.isfinite(array))


@pytest.mark.parametrize("kind", ["gaussian", "arccos", "positive", "elu"])
def test_no_step_has_no_features(kind):
    projection = matrices(8)
    x = np.zeros((2, 0, len(projection), WIDTH), "float32")
    features = feature_map(x, projection, kind)
    assert features.shape[:3] == x.shape[:3]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_features_are_float32(dtype):
    x = ops.ones((1, 1, 1, WIDTH), dtype=dtype)
    features = feature_map(x, matrices(4)[:1])
    assert keras.backend.standardize_dtype(features.dtype) == "float32"
    assert features.shape == (1, 1, 1, 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "cosine"}, "Received: kind='cosine'"),
        ({"projection": None}, "needs a `projection`.*projection=None"),
        (
            {"projection": np.zeros((2, 4, 5))},
            r"`projection` must have shape \(heads=2, features, width=8\). "
            r"Received: projection.shape=\(2, 4, 5\)",
        ),
        ({"scale": np.zeros((2, 5))}, r"Received: scale.shape=\(2, 5\)"),
        ({"x": np.zeros((3, 2, 8))}, r"Received: x.shape=\(3, 2, 8\)"),
    ],
)
def test_errors(arguments, message):
    defaults = {
        "x": np.zeros((1, 3, 2, WIDTH), "float32"),
        "projection": np.zeros((2, 4, WIDTH), "float32"),
    }
    with pytest.raises(ValueError, match=message):
        feature_map(**{**defaults, **arguments})


@pytest.mark.parametrize(
    "x", [[2.0, 0.0, 0.0], [0.0, -1e-20, 0.0], [3.0], [1.0, 2.0, -4.0]]
)
def test_the_gradient_of_a_unit_vector_is_a_projection(x):
    """Also for vectors of one entry, whose largest is their length."""
    x = np.array(x, "float64")
    unit = x / np.linalg.norm(x)
    weights = np.arange(1.0, len(x) + 1)
    expected = (weights - unit * (unit @ weights)) / np.linalg.norm(x)

    def loss(x):
        return ops.sum(unit_vector(x) * ops.cast(weights, "float32")), x

    run = compiled(differentiated(loss, []))
    _, _, gradient, _ = run(x.astype("float32"))
    tolerance = 1e-5 * np.abs(weights).max() / np.linalg.norm(x)
    np.testing.assert_allclose(gradient, expected, atol=tolerance)


@pytest.mark.parametrize("kind", ["gaussian", "arccos", "positive"])
def test_symbolic_tensors_have_features(kind):
    x = keras.KerasTensor((None, None, 2, WIDTH))
    features = feature_map(x, keras.KerasTensor((2, 16, WIDTH)), kind)
    width = 32 if kind == "gaussian" else 16
    assert features.shape == (None, None, 2, width)
