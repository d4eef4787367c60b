from typing import Any

import keras
from keras import ops

from keras_rfa.layers.random_projection_pool import RandomProjectionPool
from keras_rfa.ops.checks import check_shape
from keras_rfa.ops.feature_maps import FEATURE_MAPS, factored_feature_map
from keras_rfa.ops.state import SUM_DTYPE

Tensor = Any

# A key of a longer vector counts as one of this. Sums of such weights, and
# their inverse squares in a gradient, are still in the range of float32.
MAX_LOG_WEIGHT = 30.0


class RandomFeatures(keras.layers.Layer):
    """A feature map with what it needs: matrices, and their scale.

    It is part of the attention layers, whose arguments it takes. Drawing
    matrices and mapping are apart, since the mapping is computed again in the
    backward pass and must find the same matrices there.

    Args:
        num_heads: int. Number of heads, `h`.
        key_dim: int. Width of a query or key, `d`.
        num_features: int. Rows of a random matrix, `D`.
        feature_map: string, function or Keras layer.
        projection_pool: `RandomProjectionPool` whose arguments to take.
        normalize_inputs: bool. Whether to map unit vectors.
        seed: int. Seed of the pool, unless one is given.
        **kwargs: for `keras.layers.Layer`.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        num_features: int,
        feature_map: Any,
        projection_pool: Any = None,
        normalize_inputs: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.normalize_inputs = normalize_inputs
        self.feature_map = _resolve(feature_map)
        self.named = (
            FEATURE_MAPS[feature_map] if isinstance(feature_map, str) else None
        )
        self.pool = None
        if self.named is None or self.named.uses_projection:
            self.pool = (
                _copy_pool(projection_pool, num_heads, key_dim)
                if projection_pool is not None
                else RandomProjectionPool(
                    num_heads,
                    num_features,
                    key_dim,
                    seed=seed,
                    name="random_projection_pool",
                )
            )
        elif projection_pool is not None:
            raise ValueError(
                f"feature_map={feature_map!r} has no random matrices, and so "
                "no use for `projection_pool`. Leave it out. "
                f"Received: projection_pool={projection_pool!r}"
            )
        self.feature_dim = 0

    def build(self, input_shape: Any = None) -> None:
        if self.pool is not None:
            self.pool.build()
            self.sigma = self.add_weight(
                name="sigma",
                shape=(self.num_heads, self.key_dim),
                initializer="ones",
                dtype="float32",
                autocast=False,
            )
        # What one step is mapped to tells the width, and builds a feature map
        # that is a layer. A function may not take symbolic tensors.
        is_layer = isinstance(self.feature_map, keras.layers.Layer)
        tensor = keras.KerasTensor if self.named or is_layer else ops.zeros
        heads, width = self.num_heads, self.key_dim
        step = tensor((1, 1, heads, width), "float32")
        matrices = {}
        if self.pool is not None:
            rows = self.pool.num_features
            matrices = {
                "projection": tensor((heads, rows, width), "float32"),
                "sigma": tensor((heads, width), "float32"),
            }
        features, _ = self.map(step, **matrices)
        check_shape(
            "feature_map(x, projection)",
            features,
            batch=1,
            steps=1,
            heads=self.num_heads,
            features=None,
        )
        self.feature_dim = features.shape[-1]
        self.built = True

    def draw(self, training: bool | None) -> Tensor | None:
        """Chooses matrices, `(h,)`; `None` for a map that has none."""
        return None if self.pool is None else self.pool.draw(training)

    def matrices(self, indices: Tensor | None) -> dict[str, Tensor]:
        """Returns what `map` needs beside its input: `W~` and `σ`."""
        if self.pool is None:
            return {}
        sigma = ops.convert_to_tensor(self.sigma)
        return {"projection": self.pool.take(indices), "sigma": sigma}

    def map(
        self,
        x: Tensor,
        projection: Tensor | None = None,
        sigma: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Maps `(b, t, h, d)` to features, and to weights as keys.

        Returns:
            Features `(b, t, h, m)` and weights `(b, t, h)`, both float32.
            `None` means that the weights are 1.
        """
        if self.named is None and projection is not None and sigma is not None:
            x = ops.cast(x, SUM_DTYPE)
            features = self.feature_map(x, projection * sigma[:, None, :])
            return ops.cast(features, SUM_DTYPE), None
        features, log_weight = factored_feature_map(
            x, projection, self.feature_map, self.normalize_inputs, sigma
        )
        if log_weight is None:
            return features, None
        return features, ops.exp(ops.minimum(log_weight, MAX_LOG_WEIGHT))


def _resolve(feature_map: Any) -> Any:
    if isinstance(feature_map, dict):
        feature_map = keras.saving.deserialize_keras_object(feature_map)
    known = isinstance(feature_map, str) and feature_map in FEATURE_MAPS
    if isinstance(feature_map, keras.layers.Layer):
        # An object that two layers hold does not load again.
        return type(feature_map).from_config(feature_map.get_config())
    is_class = isinstance(feature_map, type)
    if not known and (is_class or not callable(feature_map)):
        raise ValueError(
            f"`feature_map` must be one of {sorted(FEATURE_MAPS)}, or a "
            "function or Keras layer `(x, projection) -> features`. "
            f"Received: feature_map={feature_map!r}"
        )
    return feature_map


def _copy_pool(pool: Any, num_heads: int, key_dim: int) -> RandomProjectionPool:
    """Returns a pool of the layer's own, with the same seed."""
    if isinstance(pool, dict):
        pool = keras.saving.deserialize_keras_object(pool)
    if not isinstance(pool, RandomProjectionPool):
        raise ValueError(
            "`projection_pool` must be a RandomProjectionPool. "
            f"Received: projection_pool={pool!r}"
        )
    if (pool.num_heads, pool.key_dim) != (num_heads, key_dim):
        raise ValueError(
            "`projection_pool` must have the num_heads and key_dim of the "
            f"layer, ({num_heads}, {key_dim}). Received: "
            f"({pool.num_heads}, {pool.key_dim})"
        )
    return RandomProjectionPool.from_config(pool.get_config())
