"""Feature maps: `φ(q)ᵀ φ(k)` in place of the kernel `exp(q·k)`.

No map takes a maximum or a mean over time: that would let the future leak
into a causal layer, and a stream would differ from the whole sequence.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras import ops

from keras_rfa.ops.checks import check_shape
from keras_rfa.ops.sin_cos import sin_cos
from keras_rfa.ops.state import SUM_DTYPE

Tensor = Any


def feature_map(
    x: Tensor,
    projection: Tensor | None = None,
    kind: str = "gaussian",
    normalize: bool = True,
    scale: Tensor | None = None,
) -> Tensor:
    """Maps queries or keys to the features whose inner product is a kernel.

    With `W~` the projection, `σ` the scale, `W = σ W~` and `x^ = x / |x|`:

    | kind         | feature                         | its product estimates |
    | ------------ | ------------------------------- | --------------------- |
    | `"gaussian"` | `D^-1/2 [sin(W x^), cos(W x^)]` | `exp(-|σ(q^-k^)|²/2)` |
    | `"arccos"`   | `D^-1/2 relu(W x^)`             | the arc-cosine kernel |
    | `"positive"` | `D^-1/2 exp(W~ x' - |x'|²/2)`   | `exp(σ² q·k / √d)`    |
    | `"elu"`      | `elu(x) + 1`                    | itself                |

    where `x' = σ x d^-1/4`. The arc-cosine kernel is
    `|a| |b| (sin θ + (π - θ) cos θ) / 2π` with `a = σ q^`, `b = σ k^` and `θ`
    the angle between them. Queries and keys must share `W~` and `σ`.

    Args:
        x: Tensor of shape `(b, t, h, d)`. Queries or keys.
        projection: Tensor of shape `(h, D, d)`, with entries drawn from
            N(0, 1). Every kind but `"elu"` needs one.
        kind: `"gaussian"`, `"arccos"`, `"positive"` or `"elu"`.
        normalize: bool. Whether `"gaussian"` and `"arccos"` divide `x` by its
            length. If `False`, the gaussian feature is multiplied by
            `exp(|σ x|²/2)`, so that the product estimates `exp(σ² q·k)`. The
            other kinds never normalise.
        scale: Tensor of shape `(h, d)`, the inverse length scale `σ`: larger
            is sharper. `None` means 1, that is, the projection is final.

    Returns:
        Tensor of shape `(b, t, h, m)`, with `m = 2 D` for `"gaussian"` (all
        sines first), `D` for `"arccos"` and `"positive"`, `d` for `"elu"`.
        It is float32, whatever the dtype of `x`.

    Raises:
        ValueError: if `kind` is unknown, if the projection is missing, or if
            the shapes do not fit.

    Example:

    >>> x = keras.random.normal((2, 10, 4, 16))
    >>> projection = keras.random.normal((4, 32, 16))
    >>> keras_rfa.ops.feature_map(x, projection).shape
    (2, 10, 4, 64)

    References:

    - [Peng et al., 2021](https://arxiv.org/abs/2103.02143): gaussian, arccos
    - [Choromanski et al., 2021](https://arxiv.org/abs/2009.14794): positive
    - [Katharopoulos et al., 2020](https://arxiv.org/abs/2006.16236): elu
    """
    features, log_factor = factored_feature_map(
        x, projection, kind, normalize, scale
    )
    if log_factor is None:
        return features
    return features * ops.expand_dims(ops.exp(log_factor), -1)


def factored_feature_map(
    x: Tensor,
    projection: Tensor | None,
    kind: str,
    normalize: bool,
    scale: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Keeps a factor that may be very large apart from the features.

    Of a query it cancels in attention, and of a key it is a weight.

    Args:
        x: as all arguments, those of `feature_map`.
        projection: Tensor or `None`.
        kind: string.
        normalize: bool.
        scale: Tensor or `None`.

    Returns:
        Features `(b, t, h, m)` and the logarithm of their factor `(b, t, h)`,
        `None` where the factor is 1.
    """
    if kind not in FEATURE_MAPS:
        raise ValueError(
            f"`kind` must be one of {sorted(FEATURE_MAPS)}. "
            f"Received: kind={kind!r}"
        )
    _check_shapes(x, projection, kind, scale)
    x = ops.cast(x, SUM_DTYPE)
    if projection is not None:
        projection = ops.cast(projection, SUM_DTYPE)
    scale = None if scale is None else ops.cast(scale, SUM_DTYPE)
    # Heads come first inside, so that a product is of one matrix a head.
    x = ops.transpose(x, (2, 0, 1, 3))
    features = FEATURE_MAPS[kind].function(x, projection, normalize, scale)
    features = ops.transpose(features, (1, 2, 0, 3))
    if kind == "gaussian" and not normalize:
        log_factor = _half_square(_scaled(x, scale))[..., 0]  # log C(x)
        return features, ops.transpose(log_factor, (1, 2, 0))
    return features, None


def unit_vector(x: Tensor) -> Tensor:
    """Divides by the length along the last axis; 0 stays 0.

    Dividing by the largest entry first keeps the squares in range, so that
    vectors of any length that the dtype can hold have a unit vector. The
    sum of squares is then at least 1, save for the zero vector, whose gradient
    the `maximum` makes finite.
    """
    largest = ops.max(ops.abs(x), axis=-1, keepdims=True, initial=0)
    largest = ops.stop_gradient(largest)
    x = x / ops.where(largest > 0, largest, 1)
    squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
    return x * ops.rsqrt(ops.maximum(squares, 0.5))


def _gaussian(
    x: Tensor, projection: Tensor, normalize: bool, scale: Tensor | None
) -> Tensor:
    x = unit_vector(x) if normalize else x
    angle = _project(x, _scaled(projection, scale))  # W x^
    factor = projection.shape[1] ** -0.5  # D^-1/2
    return ops.concatenate([factor * x for x in sin_cos(angle)], axis=-1)


def _arccos(
    x: Tensor, projection: Tensor, normalize: bool, scale: Tensor | None
) -> Tensor:
    x = unit_vector(x) if normalize else x
    features = ops.relu(_project(x, _scaled(projection, scale)))
    return features * projection.shape[1] ** -0.5


def _positive(
    x: Tensor, projection: Tensor, normalize: bool, scale: Tensor | None
) -> Tensor:
    x = _scaled(x, scale) * x.shape[-1] ** -0.25  # x'
    exponent = _project(x, projection) - _half_square(x)
    return ops.exp(exponent) * projection.shape[1] ** -0.5


def _elu(
    x: Tensor, projection: Tensor, normalize: bool, scale: Tensor | None
) -> Tensor:
    # `elu(x) + 1` would take 1 from a small number and add it again.
    return ops.where(x > 0, x + 1, ops.exp(ops.where(x > 0, 0, x)))


def _scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    """Multiplies `(h, ..., d)` by the scale `(h, d)`."""
    if scale is None:
        return x
    heads, width = scale.shape
    middle = (1,) * (len(x.shape) - 2)
    return x * ops.reshape(scale, (heads, *middle, width))


def _project(x: Tensor, projection: Tensor) -> Tensor:
    """Multiplies `(h, b, t, d)` by the matrices `(h, D, d)`."""
    return ops.matmul(x, ops.expand_dims(ops.swapaxes(projection, -1, -2), 1))


def _half_square(x: Tensor) -> Tensor:
    return ops.sum(ops.square(x), axis=-1, keepdims=True) / 2


class FeatureMap(NamedTuple):
    """A named feature map.

    Args:
        function: `(x, projection, normalize, scale) -> features`.
        uses_projection: bool. Whether the map needs a random matrix.
        epsilon: float. The floor of the denominator, as a share of the
            weight of the keys, that layers use unless told otherwise.
    """

    function: Callable[..., Tensor]
    uses_projection: bool
    epsilon: float


# Unit vectors have a gaussian kernel of at least exp(-2) = 0.135 while sigma is
# 1, so that a floor of 0.1 binds only where noise of the estimate exceeds it.
FEATURE_MAPS = {
    "gaussian": FeatureMap(_gaussian, uses_projection=True, epsilon=0.1),
    "arccos": FeatureMap(_arccos, uses_projection=True, epsilon=1e-3),
    "positive": FeatureMap(_positive, uses_projection=True, epsilon=1e-6),
    "elu": FeatureMap(_elu, uses_projection=False, epsilon=1e-6),
}


def _check_shapes(
    x: Tensor, projection: Tensor | None, kind: str, scale: Tensor | None
) -> None:
    check_shape("x", x, batch=None, steps=None, heads=None, width=None)
    heads, width = x.shape[2:]
    if FEATURE_MAPS[kind].uses_projection:
        if projection is None:
            raise ValueError(
                f"The {kind!r} feature map needs a `projection` of shape "
                f"({heads}, features, {width}). Received: projection=None"
            )
        check_shape(
            "projection", projection, heads=heads, features=None, width=width
        )
    if scale is not None:
        check_shape("scale", scale, heads=heads, width=width)
