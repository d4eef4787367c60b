from typing import Any

import keras
from keras import ops

from keras_rfa.layers.key_padding import key_padding
from keras_rfa.layers.random_features import RandomFeatures
from keras_rfa.layers.random_projection_pool import (
    RandomProjectionPool,
    check_seed,
)
from keras_rfa.layers.rematerialization import rematerialized
from keras_rfa.layers.stateful_attention import StatefulAttention
from keras_rfa.ops import attention_weights
from keras_rfa.ops.attention_sums import (
    Sums,
    attention_sums,
    heads_last,
    read_sums,
)
from keras_rfa.ops.checks import (
    check_number,
    check_positive,
    check_shape,
)

Tensor = Any
State = dict[str, Tensor]

SUMS = ("s", "z", "weight")


@keras.saving.register_keras_serializable(package="keras_rfa")
class RandomFeatureAttention(StatefulAttention):
    """Attention in linear time, by random features (RFA).

    It is called as `keras.layers.MultiHeadAttention` is. In each head softmax
    attention weighs the keys by `exp(q·k)`; here the weight is `φ(q)ᵀ φ(k)`,
    so that one sum over the keys serves every query:

        S = Σ φ(k_s) v_sᵀ      z = Σ φ(k_s)      o_t = φ(q_t)ᵀ S / φ(q_t)·z

    over all keys or, with `use_causal_mask=True`, those up to step `t`. The
    features are random, `W = σ W~`: `W~` is one of the matrices of a
    `RandomProjectionPool`, another one at each training call, and `σ` is a
    trainable weight, the inverse length scale of each head and dimension.

    The sums are a state of fixed size. With `initial_state` and
    `return_state` a sequence can be read in blocks of any size, down to
    single tokens, with the outputs of one long call.

    Args:
        num_heads: int. Number of heads, `h`.
        key_dim: int. Width of a query or key, `d`.
        value_dim: int. Width of a value, `e`. Defaults to `key_dim`.
        num_features: int. Random features, `D`. Sharper attention needs more.
            A `projection_pool` has its own number.
        feature_map: `"gaussian"`, `"arccos"`, `"positive"`, `"elu"` (see
            `keras_rfa.ops.feature_map`), or a serialisable function or Keras
            layer `(x, projection) -> features` with `x` `(b, t, h, d)`, the
            projection `σ W~` `(h, D, d)` and features `(b, t, h, m)`. It must
            not mix steps, draw at random or add a loss. Of a layer the
            arguments are taken, not the object.
        projection_pool: `RandomProjectionPool`. The layer takes its arguments
            and its seed, not the object. Defaults to 200 matrices a head.
        normalize_inputs: bool. Whether `"gaussian"` and `"arccos"` divide
            queries and keys by their lengths. Without it keep them short: the
            kernel is exp(σ²q·k), with no 1/√d, and its noise grows likewise.
            A key counts by `exp(|σk|²/2)`, up to `exp(30)`, also in the floor
            of the denominator.
        epsilon: float. The floor of the denominator, as a share of the weight
            of the keys. Defaults to 0.1 for `"gaussian"`, whose estimates can
            be negative, 1e-6 for `"positive"` and `"elu"`, else 1e-3.
        chunk_size: int. The most steps in one matrix product of the causal
            form. It changes speed and memory only.
        dropout: float. The share of the heads' outputs to drop.
        stateful: bool. Whether a batch continues the sequences of the batch
            before, row by row, without a gradient through the state. The
            batch size must be static, as with
            `keras.Input(batch_shape=(8, 512, 64))`. `reset_state()` begins
            anew and draws the matrices that training uses until the next
            reset: call it at the beginning of an epoch, and before and after
            validation. Files do not hold the state.
        seed: int. Seed of the pool and of the dropout. Layers of one seed have
            the same matrices and draw the same ones at each step.
        **kwargs: `use_bias`, `output_shape`, `kernel_initializer`,
            `bias_initializer`, the regularizers and constraints of
            `keras.layers.MultiHeadAttention`, `name` and `dtype`.

    Call arguments:
        query: Tensor of shape `(b, t, query_width)`.
        value: Tensor of shape `(b, s, value_width)`. `None` reads the state
            alone.
        key: Tensor of shape `(b, s, key_width)`. Defaults to `value`.
        query_mask: bool tensor of shape `(b, t)`. Handed on, not used.
        value_mask: bool tensor of shape `(b, s)`, `True` where a key counts.
        key_mask: bool tensor of shape `(b, s)`. A key counts where both masks
            say so.
        attention_mask: bool tensor of shape `(b, 1, s)` or `(b, 1, 1, s)`:
            key padding again. No other mask can be honoured in linear time.
        return_attention_scores: bool. Whether to return also the attention
            map, in quadratic time, for inspection.
        training: bool. Whether to draw matrices and to drop.
        use_causal_mask: bool. Whether a query sees keys up to its step only.
        initial_state: dict, as `return_state` and `get_initial_state` give.
        return_state: bool. Whether to return the last state too.

    Output shape:
        `(b, t, output_shape)` in the compute dtype; then, where asked for,
        scores `(b, h, t, s)` in float32, and the state: a dict of `"s"`
        `(b, h, m, e)`, `"z"` `(b, h, m)` and `"weight"` `(b, h)`, float32
        whatever the dtype policy, and `"indices"` `(h,)`, int32, the matrices
        of the pool that made it. It has no batch axis: a Functional model that
        takes or returns states at inference leaves it out, where it is 0.

    Raises:
        ValueError: for sizes that are not positive, a mask that is not key
            padding, causal attention between different lengths, or a state of
            other keys, shapes or dtypes.

    Example:

    >>> x = keras.random.normal((2, 1000, 64))
    >>> layer = keras_rfa.layers.RandomFeatureAttention(4, key_dim=16)
    >>> layer(x, x).shape
    (2, 1000, 64)
    >>> start, state = layer(
    ...     x[:, :900], x[:, :900], use_causal_mask=True, return_state=True)
    >>> end = layer(
    ...     x[:, 900:], x[:, 900:], use_causal_mask=True, initial_state=state)

    References:

    - [Peng et al., 2021](https://arxiv.org/abs/2103.02143)
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
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_heads, key_dim, value_dim, stateful=stateful, **kwargs
        )
        num_features = check_positive("num_features", num_features)
        with keras.RematScope(mode=None):
            self.features = RandomFeatures(
                num_heads,
                key_dim,
                num_features,
                feature_map,
                projection_pool,
                normalize_inputs,
                seed,
                name="features",
                dtype=self.dtype_policy,
            )
            self.dropout_layer = keras.layers.Dropout(
                dropout, seed=seed, dtype=self.dtype_policy
            )
        pool = self.features.pool
        self.num_features = pool.num_features if pool else num_features
        self.normalize_inputs = normalize_inputs
        if epsilon is None:
            named = self.features.named
            epsilon = named.epsilon if named else 1e-3
        self.epsilon = check_number("epsilon", epsilon)
        if chunk_size is not None:
            chunk_size = check_positive("chunk_size", chunk_size)
        self.chunk_size = chunk_size
        self.dropout = dropout
        self.seed = None if seed is None else check_seed(seed)

    def build(
        self, query_shape: Any, value_shape: Any = None, key_shape: Any = None
    ) -> None:
        value_shape = value_shape or query_shape
        key_shape = key_shape or value_shape
        for name, shape in (
            ("query", query_shape),
            ("value", value_shape),
            ("key", key_shape),
        ):
            check_shape(name, shape, batch=None, steps=None, width=None)
        with keras.RematScope(mode=None):
            self.build_projections(query_shape, value_shape, key_shape)
            self.features.build()
        self.build_carried_state(query_shape[0])
        self.built = True

    def call(
        self,
        query: Tensor,
        value: Tensor | None = None,
        key: Tensor | None = None,
        query_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        initial_state: State | None = None,
        return_state: bool = False,
    ) -> Any:
        self.check_call(
            query,
            value,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            use_causal_mask=use_causal_mask,
            initial_state=initial_state,
            return_state=return_state,
        )
        if value is not None:
            key_mask = key_padding(value, value_mask, key_mask, attention_mask)
        state, indices = self.begin(query.shape[0], initial_state, training)
        inputs = {
            "q": self.into_heads(self.query_dense, query),
            **self.features.matrices(indices),
        }
        if value is not None:
            inputs.update(self._memory(value, key, key_mask))
        sums, state = rematerialized(
            lambda x: self._sum(
                x, use_causal_mask, return_state or self.stateful
            ),
            {**inputs, **(state or {})},
            training,
        )
        output = Sums(*sums).divide(self.epsilon)
        output = ops.cast(output, self.compute_dtype)
        outputs = [
            self.output_dense(self.dropout_layer(output, training=training))
        ]
        if return_attention_scores:
            outputs.append(self._scores(inputs, use_causal_mask))
        if indices is not None:
            state = {**state, "indices": indices}
        if self.carried_state is not None:
            self.carried_state.write(state)
        if return_state:
            outputs.append(state)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def _memory(
        self, value: Tensor, key: Tensor | None, key_mask: Tensor | None
    ) -> State:
        """Projects what is attended to."""
        memory = {
            "k": self.into_heads(self.key_dense, value if key is None else key),
            "v": self.into_heads(self.value_dense, value),
        }
        if key_mask is not None:
            memory["key_mask"] = ops.cast(key_mask, "float32")
        return memory

    def _sum(
        self, x: dict[str, Tensor], causal: bool, return_state: bool
    ) -> tuple[Sums, State | None]:
        """Returns what the queries read, and the last state."""
        initial = {name: x[name] for name in SUMS if name in x}
        query_features, _ = self._map("q", x)
        if "k" not in x:
            return read_sums(query_features, initial), initial
        key_features, key_weight = self._map("k", x)
        sums, state = attention_sums(
            query_features,
            key_features,
            heads_last(x["v"]),
            causal=causal,
            gate_logits=x.get("gate_logits"),
            key_mask=x.get("key_mask"),
            key_weight=key_weight,
            initial_state=initial or None,
            return_state=return_state,
            chunk_size=self.chunk_size,
        )
        return sums, state if return_state else {}

    def _map(
        self, name: str, x: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor | None]:
        return self.features.map(
            heads_last(x[name]), x.get("projection"), x.get("sigma")
        )

    def _scores(self, x: dict[str, Tensor], causal: bool) -> Tensor:
        query_features, _ = self._map("q", x)
        key_features, key_weight = self._map("k", x)
        return attention_weights(
            query_features,
            key_features,
            causal=causal,
            gate_logits=x.get("gate_logits"),
            key_mask=x.get("key_mask"),
            key_weight=key_weight,
            epsilon=self.epsilon,
        )

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        pool = self.features.pool
        return {
            **super().get_config(),
            "num_features": self.num_features,
            "feature_map": serialize(self.features.feature_map),
            "projection_pool": None if pool is None else serialize(pool),
            "normalize_inputs": self.normalize_inputs,
            "epsilon": self.epsilon,
            "chunk_size": self.chunk_size,
            "dropout": self.dropout,
            "seed": self.seed,
        }
