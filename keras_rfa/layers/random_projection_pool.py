import random
import zlib
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_rfa.ops.checks import check_positive

Tensor = Any

# Seeds fit the seed state of every backend.
MAX_SEED = 2**31 - 1


@keras.saving.register_keras_serializable(package="keras_rfa")
class RandomProjectionPool(keras.layers.Layer):
    """A set of random matrices for each head, drawn once and then sampled.

    Random feature attention needs matrices with entries drawn from N(0, 1).
    Training with another matrix at each call keeps the model from fitting one
    of them; drawing `pool_size` matrices a head in advance makes that a
    lookup. Inference uses matrix 0 of each head, always.

    Matrix 0 is an ordinary weight, `projection`. The other matrices are the
    weight `pool`, which no file holds: they come again from the seed, bit for
    bit, on every backend. A file holds the seed, the number of draws so far
    and a checksum. Where a loaded seed gives other matrices than it gave to
    the writer (orthogonal ones can differ between processors in the last
    digit) inference goes on, and training raises an error.

    Two layers share matrices by having the same seed.

    Args:
        num_heads: int. Number of heads, `h`.
        num_features: int. Rows of each matrix, `D`.
        key_dim: int. Columns of each matrix, `d`.
        pool_size: int. Matrices for each head. With 1 training uses the
            matrix of inference. Defaults to 200, as in the paper.
        orthogonal: bool. Whether the rows of each block of `d` rows are
            orthogonal: a rotation drawn uniformly (Haar), its rows as long as
            gaussian ones (chi with `d` degrees of freedom). The estimate of a
            kernel stays unbiased, and its variance shrinks.
        seed: int from 0 to 2**31 - 1. `None` takes one from Python's `random`
            module, so that `keras.utils.set_random_seed` decides it.
        **kwargs: `name` and the like, for `keras.layers.Layer`.

    Raises:
        ValueError: if a size is not positive or the seed is out of range.

    Example:

    >>> pool = keras_rfa.layers.RandomProjectionPool(4, 64, 32, seed=0)
    >>> pool.build()
    >>> indices = pool.draw(training=True)  # (4,), one of 200 for each head
    >>> pool.take(indices).shape
    (4, 64, 32)

    References:

    - [Peng et al., 2021](https://arxiv.org/abs/2103.02143)
    - [Yu et al., 2016](https://arxiv.org/abs/1610.09072): orthogonal features
    """

    def __init__(
        self,
        num_heads: int,
        num_features: int,
        key_dim: int,
        pool_size: int = 200,
        orthogonal: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = check_positive("num_heads", num_heads)
        self.num_features = check_positive("num_features", num_features)
        self.key_dim = check_positive("key_dim", key_dim)
        self.pool_size = check_positive("pool_size", pool_size)
        self.orthogonal = orthogonal
        if seed is None:
            seed = random.randint(0, MAX_SEED)
        self.seed = check_seed(seed)
        self.seed_generator = keras.random.SeedGenerator(self.seed)
        self.pool = None
        self.can_train = True

    def build(self, input_shape: Any = None) -> None:
        matrices = self._matrices()
        self.projection = self.add_weight(
            name="projection",
            shape=matrices[:, 0].shape,
            initializer=_constant(matrices[:, 0]),
            dtype="float32",
            trainable=False,
            autocast=False,
        )
        if self.pool_size > 1:
            self.pool = self.add_weight(
                name="pool",
                shape=matrices[:, 1:].shape,
                initializer=_constant(matrices[:, 1:]),
                dtype="float32",
                trainable=False,
                autocast=False,
            )
        self.built = True

    def draw(self, training: bool | None = None) -> Tensor:
        """Chooses a matrix for each head.

        Call this outside anything that is rematerialised: inside, it would
        draw again in the backward pass.

        Args:
            training: bool. `True` draws at random, independently for each
                head and each call; otherwise the indices are 0.

        Returns:
            int32 tensor of shape `(num_heads,)`.

        Raises:
            ValueError: when training with a pool that is not the one that the
                weights were trained with.
        """
        if not training or self.pool_size == 1:
            return ops.zeros((self.num_heads,), dtype="int32")
        self.check_can_train()
        return keras.random.randint(
            (self.num_heads,),
            0,
            self.pool_size,
            dtype="int32",
            seed=self.seed_generator,
        )

    def check_can_train(self) -> None:
        """Raises a `ValueError` if the weights came from another pool."""
        if not self.can_train:
            raise ValueError(
                f"The weights of {self.name!r} were trained with a pool that "
                f"seed={self.seed}, pool_size={self.pool_size}, "
                f"orthogonal={self.orthogonal} does not give here, so "
                "training can not go on as it would have; inference can. "
                "Build the layer with the arguments it was trained with, on "
                "the kind of processor it was trained on. Copy weights with "
                "`save_weights` and `load_weights`, which also copy the seed, "
                "not with `set_weights`."
            )

    def check_indices(self, indices: Tensor) -> None:
        """Raises a `ValueError` unless the pool has matrices of `indices`.

        While a function is compiled the values are not known, and pass.
        """
        try:
            values = ops.convert_to_numpy(indices)
        except (TypeError, RuntimeError):  # as the backends say so
            return
        if ((values < 0) | (values >= self.pool_size)).any():
            raise ValueError(
                f"{self.name!r} has {self.pool_size} matrices a head, so "
                f"indices must be from 0 to {self.pool_size - 1}. A state is "
                "read by the layer that made it, or one with the same pool. "
                f"Received: indices={values.tolist()}"
            )

    def take(self, indices: Tensor) -> Tensor:
        """Returns the matrices with the given indices.

        Args:
            indices: int32 tensor of shape `(num_heads,)`, as `draw` gives.
                They are not checked here: see `check_indices`.

        Returns:
            float32 tensor of shape `(num_heads, num_features, key_dim)`.
        """
        projection = ops.convert_to_tensor(self.projection)
        if self.pool is None:
            return projection
        others = self.pool_size - 1
        pool = ops.reshape(self.pool, (-1, self.num_features, self.key_dim))
        first = ops.arange(self.num_heads, dtype="int32") * others
        drawn = ops.take(pool, first + ops.maximum(indices - 1, 0), axis=0)
        return ops.where(indices[:, None, None] == 0, projection, drawn)

    def save_own_variables(self, store: Any) -> None:
        if not self.built:
            return
        _, draws = ops.convert_to_numpy(self.seed_generator.state)
        store["projection"] = self.projection
        store["seed"] = np.asarray(self.seed, "int64")
        store["draws"] = np.asarray(draws, "int64")
        store["checksum"] = np.asarray(self._checksum(), "int64")

    def load_own_variables(self, store: Any) -> None:
        if not self.built:
            super().load_own_variables(store)
            return
        shape = tuple(store["projection"].shape)
        if shape != tuple(self.projection.shape):
            raise ValueError(
                f"The file holds matrices of shape {shape} for "
                f"{self.name!r}, which has (num_heads, num_features, key_dim)"
                f"={tuple(self.projection.shape)}."
            )
        self.projection.assign(store["projection"])
        self.seed = int(np.asarray(store["seed"]))
        state = self.seed_generator.state
        draws = int(np.asarray(store["draws"]))
        state.assign(ops.convert_to_tensor([self.seed, draws], state.dtype))
        if self.pool is not None:
            self.pool.assign(self._matrices()[:, 1:])
        checksum = int(np.asarray(store["checksum"]))
        self.can_train = checksum == self._checksum()

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "num_features": self.num_features,
            "key_dim": self.key_dim,
            "pool_size": self.pool_size,
            "orthogonal": self.orthogonal,
            "seed": self.seed,
        }

    def _matrices(self) -> np.ndarray:
        """Returns all matrices, `(num_heads, pool_size, D, d)` in float32.

        The stream of `RandomState` is frozen for all versions of NumPy, and
        its first matrices do not depend on `pool_size`.
        """
        stream = np.random.RandomState(self.seed)
        leading = (self.pool_size, self.num_heads)
        rows, width = self.num_features, self.key_dim
        if self.orthogonal:
            blocks = -(-rows // width)
            normal = stream.standard_normal((*leading, blocks, 2, width, width))
            rotation, triangle = np.linalg.qr(normal[..., 0, :, :])
            # Without the signs, what QR returns is not uniform (Haar).
            diagonal = np.diagonal(triangle, axis1=-2, axis2=-1)
            rotation = rotation * np.sign(diagonal)[..., None, :]
            lengths = np.linalg.norm(normal[..., 1, :, :], axis=-1)
            matrices = rotation * lengths[..., None]
            matrices = matrices.reshape(*leading, blocks * width, width)
            matrices = matrices[..., :rows, :]
        else:
            matrices = stream.standard_normal((*leading, rows, width))
        return np.ascontiguousarray(matrices.swapaxes(0, 1), "float32")

    def _checksum(self) -> int:
        if self.pool is None:
            return 0
        pool = ops.convert_to_numpy(self.pool)
        return zlib.crc32(np.ascontiguousarray(pool).tobytes())


def check_seed(seed: Any) -> int:
    """Returns a seed that every backend can hold, or raises a `ValueError`."""
    if check_positive("seed", seed, least=0) > MAX_SEED:
        raise ValueError(
            f"`seed` must be an integer from 0 to {MAX_SEED}. "
            f"Received: seed={seed!r}"
        )
    return int(seed)


def _constant(array: np.ndarray) -> Any:
    def initializer(shape: Any, dtype: Any = None) -> Tensor:
        return ops.convert_to_tensor(array, dtype=dtype)

    return initializer
