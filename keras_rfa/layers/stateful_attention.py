from typing import Any

import keras
from keras import ops

from keras_rfa.layers.carried_state import CarriedState
from keras_rfa.layers.key_padding import check_key_padding
from keras_rfa.layers.multi_head_projections import MultiHeadProjections
from keras_rfa.layers.random_features import RandomFeatures
from keras_rfa.ops import check_state, zero_state
from keras_rfa.ops.checks import check_lengths

Tensor = Any
State = dict[str, Tensor]

NOTHING_TO_READ = (
    "`value=None` reads a state alone, so it needs `initial_state` and has no "
    "attention map. To attend to the query itself pass it twice: "
    "`layer(x, x)`."
)


class StatefulAttention(MultiHeadProjections):
    """An attention whose past is a state: where it begins, and carrying it.

    The base of the attention layers by random features. A state is the sums
    `"s"`, `"z"` and `"weight"` with the `"indices"` of the matrices that the
    features were made with.

    Args:
        *args: for `MultiHeadProjections`.
        stateful: bool. Whether a batch continues the batch before.
        **kwargs: for `MultiHeadProjections`.
    """

    features: RandomFeatures

    def __init__(
        self, *args: Any, stateful: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.stateful = stateful
        self.carried_state: CarriedState | None = None

    def build_carried_state(self, batch_size: int | None) -> None:
        """Creates what a stateful layer keeps; the features must be built."""
        if not self.stateful:
            return
        if not isinstance(batch_size, int):
            raise ValueError(
                "A stateful layer keeps a state for each row of a batch, so "
                "the batch size must be static, as with "
                "`keras.Input(batch_shape=(8, 512, 64))`. "
                f"Received: batch size {batch_size}"
            )
        self.carried_state = CarriedState(
            self._new_sequences(batch_size), batch_size, name="carried_state"
        )

    def check_call(self, query: Any, value: Any, **options: Any) -> None:
        """Raises what can be known before anything is computed.

        Args:
            query: tensor, also a symbolic one.
            value: tensor or `None`.
            **options: the other call arguments.
        """
        scores = options.get("return_attention_scores")
        state = options.get("initial_state") is not None or self.stateful
        if value is None and (scores or not state):
            raise ValueError(NOTHING_TO_READ)
        if scores and state:
            raise ValueError(
                "`return_attention_scores=True` shows the weights of keys, "
                "and a state no longer has the keys it was made from. Leave "
                "out `initial_state`, or use a layer that is not stateful."
            )
        if options.get("attention_mask") is not None:
            check_key_padding(options["attention_mask"])
        if options.get("use_causal_mask") and value is not None:
            check_lengths("`use_causal_mask=True`", query=query, value=value)

    def begin(
        self,
        batch_size: Any,
        initial_state: State | None,
        training: bool | None,
    ) -> tuple[State | None, Tensor | None]:
        """Returns the sums to begin with, if any, and the matrices to use."""
        if initial_state is not None:
            check_state(
                initial_state,
                batch_size,
                self.num_heads,
                self.features.feature_dim,
                self.value_dim,
                with_indices=self.features.pool is not None,
            )
            state = dict(initial_state)
            if self.features.pool is not None and "indices" in state:
                self.features.pool.check_indices(state["indices"])
        elif self.carried_state is not None:
            state = self._carried(self.carried_state.read(), training)
        else:
            return None, self.features.draw(training)
        indices = state.pop("indices", None)
        if indices is None:
            indices = self.features.draw(training)
        return state, indices

    def _carried(self, state: State, training: bool | None) -> State:
        """Returns the carried state, or zeros if other matrices made it."""
        if "drawn" not in state:
            return state
        drawn = state.pop("drawn")
        if training and self.features.pool is not None:
            self.features.pool.check_can_train()
        indices = drawn if training else self.features.draw(training)
        same = ops.all(state.pop("indices") == indices)
        state = {name: ops.where(same, sums, 0) for name, sums in state.items()}
        return {**state, "indices": indices}

    def _new_sequences(self, batch_size: int) -> State:
        pool = self.features.pool
        state = self.get_initial_state(
            batch_size, training=pool is not None and pool.can_train
        )
        if pool is None:
            return state
        # Not the same buffer: JAX gives each to the next step once.
        return {**state, "drawn": ops.copy(state["indices"])}

    def get_initial_state(
        self, batch_size: Any, training: bool | None = None
    ) -> State:
        """Returns the state of a layer that has read nothing.

        Args:
            batch_size: int. Rows of the batch, `b`.
            training: bool. Whether to draw the matrices that the calls from
                this state on use; otherwise they are those of inference.

        Returns:
            dict, as `return_state=True` gives it.
        """
        if not self.features.built:
            raise ValueError(
                f"{self.name!r} must be built before it has a state. Call it "
                "once, or call `build(query_shape, value_shape)`."
            )
        state = zero_state(
            batch_size,
            self.num_heads,
            self.features.feature_dim,
            self.value_dim,
        )
        indices = self.features.draw(training)
        return state if indices is None else {**state, "indices": indices}

    def reset_state(self) -> None:
        """Begins new sequences in every row of a stateful layer.

        Call it outside compiled functions, such as in a callback: at the
        beginning of an epoch, and before and after validation.
        """
        if self.carried_state is None:
            raise ValueError(
                f"{self.name!r} carries no state. Build it with stateful=True."
            )
        state = self._new_sequences(self.carried_state.batch_size)
        self.carried_state.write(state)

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
        self.check_call(
            query,
            value,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            use_causal_mask=use_causal_mask,
            initial_state=initial_state,
            return_state=return_state,
        )
        h, m, e = self.num_heads, self.features.feature_dim, self.value_dim
        shape = self.compute_output_shape(query.shape)
        outputs = [keras.KerasTensor(shape, self.compute_dtype)]
        if return_attention_scores:
            scores = (query.shape[0], h, query.shape[1], value.shape[1])
            outputs.append(keras.KerasTensor(scores, "float32"))
        if return_state:
            shapes = {"s": (h, m, e), "z": (h, m), "weight": (h,)}
            state = {
                name: keras.KerasTensor((query.shape[0], *shape), "float32")
                for name, shape in shapes.items()
            }
            if self.features.pool is not None:
                state["indices"] = keras.KerasTensor((h,), "int32")
            outputs.append(state)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "stateful": self.stateful}
