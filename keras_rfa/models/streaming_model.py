from typing import Any

import keras
from keras import ops, tree

from keras_rfa.layers import (
    ShortConvolution,
    SinusoidalPositions,
    TransformerDecoder,
)
from keras_rfa.layers.key_padding import real_span
from keras_rfa.ops.checks import check_shape

Tensor = Any
State = dict[str, Any]


class StreamingModel(keras.Model):
    """A Functional model of tokens that can go on from a state.

    The base of `LanguageModel` and `Translator`. A state is a dict of
    `"position"` `(b,)`, int32, how many tokens of each row have been read, and
    of the state of each layer that has one, by the name of the layer. Each of
    its tensors has the rows of the batch as its first axis.
    """

    def decoder_layers(self) -> list[Any]:
        """Returns the layers from token ids to logits, in order."""
        raise NotImplementedError  # abstract: each subclass has others

    @property
    def vocabulary_size(self) -> int:
        """How many ids there are, padding included."""
        return int(self.output_shape[-1])

    def call_with_state(
        self, token_ids: Tensor, state: State, training: bool | None = False
    ) -> tuple[Tensor, State]:
        """Reads the next tokens of each row, any number of them.

        Blocks of any size, single tokens and the whole sequence give equal
        logits. Padding at either end of a row counts for nothing, so that rows
        may have different numbers of tokens.

        Args:
            token_ids: int tensor of shape `(b, t)`, 0 for padding.
            state: dict, as `get_initial_state` or an earlier call gave it.
            training: bool. Whether to drop.

        Returns:
            Logits `(b, t, vocabulary_size)`, float32, and the next state.
        """
        token_ids = ops.cast(ops.convert_to_tensor(token_ids), "int32")
        check_shape("token_ids", token_ids, batch=None, steps=None)
        state = tree.map_structure(ops.convert_to_tensor, state)
        rows = {"batch": token_ids.shape[0]}
        check_shape('state["position"]', state["position"], **rows)
        mask = ops.not_equal(token_ids, 0)
        first, end = real_span(mask)
        after = {"position": state["position"] + end - first}
        x = token_ids
        for layer in self.decoder_layers():
            options: dict[str, Any] = {"training": training}
            if isinstance(layer, SinusoidalPositions):
                options["start_index"] = state["position"] - first
            elif isinstance(layer, keras.layers.ReversibleEmbedding):
                options["reverse"] = x is not token_ids  # the second time
            elif layer.name in state:
                options.update(
                    mask=mask,
                    initial_state=state[layer.name],
                    return_state=True,
                )
            if isinstance(layer, ShortConvolution):
                options["ragged"] = True
            x = layer(x, **options)
            if "return_state" in options:
                x, last = x
                after[layer.name] = _entries_of(last, state[layer.name])
        return x, after

    def free_steps(self, state: State) -> int | None:
        """Returns how many more steps a state has room for.

        Padding counts as a step here. `None` means any number: only the cache
        of softmax attention has an end.
        """
        free = [
            entry["self"]["mask"].shape[1]
            - int(ops.max(entry["self"]["steps"]))
            for name, entry in state.items()
            if name != "position" and "steps" in entry.get("self", {})
        ]
        return min(free) if free else None

    def empty_state(
        self,
        batch_size: Any,
        max_length: int | None,
        training: bool | None = False,
    ) -> State:
        """Returns the state of layers that have read nothing."""
        state = {"position": ops.zeros((batch_size,), "int32")}
        for layer in self.decoder_layers():
            if isinstance(layer, TransformerDecoder):
                state[layer.name] = layer.get_initial_state(
                    batch_size, training, max_length
                )
            elif isinstance(layer, ShortConvolution):
                state[layer.name] = layer.get_initial_state(batch_size)
        return state if training else without_indices(state)


def without_indices(state: State) -> State:
    """Leaves out which matrices a state was made with.

    At inference they are always the same, and they have no rows.
    """
    return {
        name: without_indices(entry) if isinstance(entry, dict) else entry
        for name, entry in state.items()
        if name != "indices"
    }


def _entries_of(last: Any, before: Any) -> Any:
    """Returns the entries of a state that the one before had too."""
    if not isinstance(before, dict):
        return last
    return {name: _entries_of(last[name], before[name]) for name in before}
