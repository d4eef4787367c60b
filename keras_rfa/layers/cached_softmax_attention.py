from typing import Any

import keras
import numpy as np
from keras import ops

from keras_rfa.layers.key_padding import key_padding, mask_of
from keras_rfa.layers.multi_head_projections import MultiHeadProjections
from keras_rfa.layers.stateful_attention import NOTHING_TO_READ
from keras_rfa.ops.checks import check_lengths, check_positive, check_shapes

Tensor = Any
State = dict[str, Tensor]


@keras.saving.register_keras_serializable(package="keras_rfa")
class CachedSoftmaxAttention(MultiHeadProjections):
    """Softmax attention that can also read a sequence in parts.

    The baseline of the linear layers here, with their calls: what
    `keras.layers.MultiHeadAttention` computes, and a state from which the next
    part of a sequence goes on. The state is a cache of all keys and values, so
    that its size and the time of a step grow with what has been read:

        o_t = Σ_s exp(q_t·k_s / √d) v_s / Σ_s exp(q_t·k_s / √d)

    over all keys or, with `use_causal_mask=True`, those up to step `t`; 0
    where there is no key.

    A cache has a number of slots that is chosen when it is made. Each step
    that is read takes one, padding too. One that is overfull gives NaN. No
    gradient reaches an earlier part through a cache on TensorFlow.

    Args:
        num_heads: int. Number of heads, `h`.
        key_dim: int. Width of a query or key, `d`.
        value_dim: int. Width of a value, `e`. Defaults to `key_dim`.
        dropout: float. The share of the attention weights to drop.
        seed: int. Seed of the dropout.
        **kwargs: `use_bias`, `output_shape`, `kernel_initializer`,
            `bias_initializer`, the regularizers and constraints of
            `keras.layers.MultiHeadAttention`, `name` and `dtype`.

    Call arguments:
        query, value, key, query_mask, value_mask, key_mask, attention_mask,
            return_attention_scores, training, use_causal_mask: as in
            `RandomFeatureAttention`.
        initial_state: dict, as `return_state`, `get_initial_state` and
            `encode` give.
        return_state: bool. Whether to return the last state too.

    Output shape:
        `(b, t, output_shape)` in the compute dtype; then, where asked for,
        the weights `(b, h, t, slots)` in float32, and the state: a dict of
        `"key"` `(b, h, slots, d)` and `"value"` `(b, h, slots, e)` in the
        compute dtype, `"mask"` `(b, slots)`, bool, the keys that count, and
        `"steps"` `(b,)`, int32, the slots that are taken, equal in all rows.
        Without an initial state there are as many slots as keys.

    Raises:
        ValueError: for sizes that are not positive, a mask that is not key
            padding, causal attention between different lengths, or a state of
            other keys or shapes.

    Example:

    >>> x = keras.random.normal((2, 10, 64))
    >>> layer = keras_rfa.layers.CachedSoftmaxAttention(4, key_dim=16)
    >>> whole = layer(x, x, use_causal_mask=True)
    >>> state = layer.get_initial_state(2, max_length=10)
    >>> start, state = layer(
    ...     x[:, :9], x[:, :9], use_causal_mask=True, initial_state=state,
    ...     return_state=True)
    >>> end = layer(
    ...     x[:, 9:], x[:, 9:], use_causal_mask=True, initial_state=state)

    References:

    - [Vaswani et al., 2017](https://arxiv.org/abs/1706.03762)
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_heads, key_dim, value_dim, **kwargs)
        with keras.RematScope(mode=None):
            self.dropout_layer = keras.layers.Dropout(
                dropout, seed=seed, dtype=self.dtype_policy
            )
        self.dropout = dropout
        self.seed = seed

    def build(
        self, query_shape: Any, value_shape: Any = None, key_shape: Any = None
    ) -> None:
        value_shape = value_shape or query_shape
        with keras.RematScope(mode=None):
            self.build_projections(
                query_shape, value_shape, key_shape or value_shape
            )
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
        self.check_call(query, value, use_causal_mask, initial_state)
        state: State = initial_state or {}
        first: Tensor = 0  # the slot of the first query
        if value is not None:
            mask = key_padding(value, value_mask, key_mask, attention_mask)
            state = self._memory(value, key, mask)
            if initial_state is not None:
                first = initial_state["steps"][0]
                state = _append(initial_state, state, first)
        visible = state["mask"][:, None, None]
        if use_causal_mask and value is not None:
            earlier = _earlier(state["mask"], ops.shape(query)[1], first)
            visible = ops.logical_and(visible, earlier)
        q = _split(self.into_heads(self.query_dense, query))
        outputs, weights = self._attend(q, state, visible, training)
        if initial_state is not None:
            fits = state["steps"][0] <= ops.shape(state["key"])[2]
            outputs = ops.where(fits, outputs, np.nan)
        outputs = [self.output_dense(ops.cast(outputs, self.compute_dtype))]
        if return_attention_scores:
            outputs.append(weights)
        if return_state:
            outputs.append(state)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def encode(
        self,
        value: Tensor,
        key: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> State:
        """Projects a memory once, for all steps of a decoder.

        Args:
            value: Tensor of shape `(b, s, value_width)`.
            key: Tensor of shape `(b, s, key_width)`. Defaults to `value`.
            value_mask: bool tensor of shape `(b, s)`. Defaults to the mask of
                `value`.
            key_mask: bool tensor of shape `(b, s)`.
            training: bool. Not used: nothing is drawn.

        Returns:
            dict, as `return_state=True` gives it.
        """
        value_mask = mask_of(value) if value_mask is None else value_mask
        return self._memory(
            value, key, key_padding(value, value_mask, key_mask)
        )

    def get_initial_state(
        self,
        batch_size: Any,
        training: bool | None = None,
        max_length: int | None = None,
    ) -> State:
        """Returns an empty cache.

        Args:
            batch_size: int. Rows of the batch, `b`.
            training: bool. Not used: nothing is drawn.
            max_length: int. Steps to make room for, padding included.

        Raises:
            ValueError: if there is no `max_length`.
        """
        if max_length is None:
            raise ValueError(
                "A cache of keys and values needs a size: pass `max_length`, "
                "the steps that will be read. Received: max_length=None"
            )
        slots = check_positive("max_length", max_length)
        return {
            name: ops.zeros((batch_size, *spec.shape[1:]), spec.dtype)
            for name, spec in self._state_spec(None, slots).items()
        }

    def check_call(
        self, query: Any, value: Any, causal: bool, initial_state: Any
    ) -> None:
        """Raises what can be known before anything is computed."""
        if value is None and initial_state is None:
            raise ValueError(NOTHING_TO_READ)
        if causal and value is not None:
            check_lengths("`use_causal_mask=True`", query=query, value=value)
        if initial_state is not None:
            rows = {"batch": query.shape[0]}
            heads = {**rows, "heads": self.num_heads, "slots": None}
            check_shapes(
                "initial_state",
                initial_state,
                key={**heads, "key_dim": self.key_dim},
                value={**heads, "value_dim": self.value_dim},
                mask={**rows, "slots": None},
                steps=rows,
            )
            slots = initial_state["key"].shape[2]
            steps = 0 if value is None else value.shape[1]
            known = isinstance(slots, int) and isinstance(steps, int)
            if known and steps > slots:
                raise ValueError(
                    f"A cache of {slots} slots has no room for {steps} steps. "
                    "Make it with a larger `max_length`."
                )

    def _memory(
        self, value: Tensor, key: Tensor | None, mask: Tensor | None
    ) -> State:
        """Returns a cache that is full of the given keys and values."""
        batch, steps = ops.shape(value)[:2]
        if mask is None:
            mask = ops.ones((batch, steps), "bool")
        key = value if key is None else key
        return {
            "key": _split(self.into_heads(self.key_dense, key)),
            "value": _split(self.into_heads(self.value_dense, value)),
            "mask": mask,
            "steps": ops.full((batch,), steps, "int32"),
        }

    def _attend(
        self, q: Tensor, state: State, visible: Tensor, training: bool | None
    ) -> tuple[Tensor, Tensor]:
        """Returns what the queries see, `(b, t, h, e)`, and the weights."""
        q = ops.multiply(q, ops.cast(self.key_dim**-0.5, q.dtype))
        scores = ops.matmul(q, ops.transpose(state["key"], (0, 1, 3, 2)))
        scores = ops.where(visible, ops.cast(scores, "float32"), -1e30)
        weights = ops.where(visible, ops.softmax(scores), 0.0)
        dropped = self.dropout_layer(
            ops.cast(weights, self.compute_dtype), training=training
        )
        outputs = ops.matmul(dropped, state["value"])
        return ops.transpose(outputs, (0, 2, 1, 3)), weights

    def _state_spec(self, batch: int | None, slots: int | None) -> State:
        h, d, e = self.num_heads, self.key_dim, self.value_dim
        return {
            "key": keras.KerasTensor((batch, h, slots, d), self.compute_dtype),
            "value": keras.KerasTensor(
                (batch, h, slots, e), self.compute_dtype
            ),
            "mask": keras.KerasTensor((batch, slots), "bool"),
            "steps": keras.KerasTensor((batch,), "int32"),
        }

    def compute_output_spec(
        self,
        query: Any,
        value: Any = None,
        key: Any = None,
        query_mask: Any = None,
        value_mask: Any = None,
        key_mask: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        use_causal_mask: bool = False,
        initial_state: Any = None,
        return_state: bool = False,
    ) -> Any:
        self.check_call(query, value, use_causal_mask, initial_state)
        shape = self.compute_output_shape(query.shape)
        outputs = [keras.KerasTensor(shape, self.compute_dtype)]
        slots = (
            value.shape[1]
            if initial_state is None
            else initial_state["key"].shape[2]
        )
        batch, steps = query.shape[:2]
        if return_attention_scores:
            shape = (batch, self.num_heads, steps, slots)
            outputs.append(keras.KerasTensor(shape, "float32"))
        if return_state:
            outputs.append(self._state_spec(batch, slots))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "seed": self.seed,
        }


def _split(x: Tensor) -> Tensor:
    """Turns `(h, b, t, d)` to `(b, h, t, d)`."""
    return ops.transpose(x, (1, 0, 2, 3))


def _append(state: State, new: State, first: Tensor) -> State:
    """Returns a cache with further keys and values from slot `first` on."""
    room = ops.shape(state["mask"])[1] - ops.shape(new["mask"])[1]
    first = ops.minimum(first, room)  # an overfull cache is found later

    def write(name: str, start: tuple[Any, ...]) -> Tensor:
        entries = ops.cast(new[name], state[name].dtype)
        return ops.slice_update(state[name], start, entries)

    return {
        "key": write("key", (0, 0, first, 0)),
        "value": write("value", (0, 0, first, 0)),
        "mask": write("mask", (0, first)),
        "steps": state["steps"] + new["steps"],
    }


def _earlier(mask: Tensor, steps: Any, first: Any) -> Tensor:
    """Tells, `(t, slots)`, what is not after queries from slot `first` on."""
    slots = ops.arange(ops.shape(mask)[1], dtype="int32")
    queries = ops.arange(steps, dtype="int32") + first
    return slots <= queries[:, None]
