from typing import Any

import keras

from keras_rfa.layers.random_feature_attention import RandomFeatureAttention
from keras_rfa.layers.random_projection_pool import RandomProjectionPool
from keras_rfa.layers.spread_memory import SpreadMemory
from keras_rfa.ops.checks import check_lengths

Tensor = Any


@keras.saving.register_keras_serializable(package="keras_rfa")
class GatedRandomFeatureAttention(RandomFeatureAttention):
    """Random feature attention that forgets: a gate gives it recency.

    Each head has a gate for each step, computed from the input of the keys:

        g_t = sigmoid(w_g·x_t + b_g)
        S_t = g_t S_{t-1} + (1 - g_t) φ(k_t) v_tᵀ      z_t alike
        o_t = φ(q_t)ᵀ S_t / φ(q_t)·z_t

    A masked step leaves the state as it was. Without `use_causal_mask` the
    recurrence also runs from the last step to the first, and a query sees
    both. Queries and keys must be as many; the arguments, calls and states
    are those of `RandomFeatureAttention`.

    Args:
        num_heads, key_dim, ..., seed: as in `RandomFeatureAttention`.
        gate_bias_initializer: Initializer of `b_g`. Defaults to
            `keras_rfa.layers.SpreadMemory()`: at first the heads remember for
            4 to 512 steps (`g` from 3/4 to 1 - 1/512). The gate always has a
            bias, without regularizer or constraint.
        **kwargs: as in `RandomFeatureAttention`.

    Raises:
        ValueError: as in `RandomFeatureAttention`, and if a two-sided call is
            asked to take or return a state.

    Example:

    >>> x = keras.random.normal((2, 1000, 64))
    >>> layer = keras_rfa.layers.GatedRandomFeatureAttention(4, key_dim=16)
    >>> output, state = layer(x, x, use_causal_mask=True, return_state=True)

    References:

    - [Peng et al., 2021](https://arxiv.org/abs/2103.02143), section 3.2
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        num_features: int = 64,
        feature_map: Any = "gaussian",
        projection_pool: RandomProjectionPool | None = None,
        normalize_inputs: bool = True,
        epsilon: float | None = None,
        chunk_size: int | None = None,
        dropout: float = 0.0,
        stateful: bool = False,
        seed: int | None = None,
        gate_bias_initializer: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_heads,
            key_dim,
            value_dim,
            num_features,
            feature_map,
            projection_pool,
            normalize_inputs,
            epsilon,
            chunk_size,
            dropout,
            stateful,
            seed,
            **kwargs,
        )
        if gate_bias_initializer is None:
            gate_bias_initializer = SpreadMemory()
        self.gate_bias_initializer = keras.initializers.get(
            gate_bias_initializer
        )

    def build_projections(
        self, query_shape: Any, value_shape: Any, key_shape: Any
    ) -> None:
        super().build_projections(query_shape, value_shape, key_shape)
        # A gate near 1 is 1 - 2**-9 at the next value in bfloat16.
        single = keras.backend.result_type(self.compute_dtype, "float32")
        arguments = self._dense_arguments("forget_gate", single)
        arguments["bias_initializer"] = self.gate_bias_initializer
        # They would pull every memory to two steps, where the bias is 0.
        arguments["bias_regularizer"] = arguments["bias_constraint"] = None
        self.gate_dense = keras.layers.Dense(
            self.num_heads, name="forget_gate", **arguments
        )
        self.gate_dense.build(key_shape)

    def dense_layers(self) -> list[keras.layers.Layer]:
        return [*super().dense_layers(), self.gate_dense]

    def check_call(self, query: Any, value: Any, **options: Any) -> None:
        super().check_call(query, value, **options)
        if value is None:
            return
        check_lengths("A gated layer", query=query, value=value)
        state = options.get("initial_state") is not None
        has_state = state or options.get("return_state") or self.stateful
        if has_state and not options.get("use_causal_mask"):
            raise ValueError(
                "A gated layer that is not causal also reads from the last "
                "step to the first, so it can neither take, return nor carry "
                "a state. Pass `use_causal_mask=True`, or leave out "
                "`initial_state`, `return_state` and `stateful`. "
                "Received: use_causal_mask=False"
            )

    def _memory(
        self, value: Tensor, key: Tensor | None, key_mask: Tensor | None
    ) -> dict[str, Tensor]:
        memory = super()._memory(value, key, key_mask)
        x = value if key is None else key
        return {**memory, "gate_logits": self.gate_dense(x)}

    def get_config(self) -> dict[str, Any]:
        initializer = keras.initializers.serialize(self.gate_bias_initializer)
        return {
            **super().get_config(),
            "gate_bias_initializer": initializer,
        }
