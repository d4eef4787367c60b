"""One way to call whatever is tested."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_rfa.layers import (
    GatedRandomFeatureAttention,
    TransformerDecoder,
    TransformerEncoder,
)

Tensor = Any
Array = Any
MakeLayer = Callable[[], keras.layers.Layer]
# (layer, query, value, *, causal, key_mask) -> outputs
Reference = Callable[..., Array]

FORMS = ("causal", "bidirectional", "cross")
SEED = 0
CHUNK_SIZE = 4
WIDTH = 12
OTHER_STEPS = 5


class Subject:
    """An attention layer, or a block around one, that is tested.

    Whatever it is, it is called with one sequence `x`: the sequence that
    attends to itself or, in the form `"cross"`, the memory that another one
    attends to. That other sequence (in a decoder block, the memory) is fixed.

    Args:
        make_layer: function without arguments that returns a new layer.
        form: string, one of `"causal"`, `"bidirectional"` and `"cross"`.
        chunk_size: int. The chunk size of the attention layers.
    """

    def __init__(
        self,
        make_layer: MakeLayer,
        form: str,
        chunk_size: int | None = CHUNK_SIZE,
    ) -> None:
        if form not in FORMS:
            raise ValueError(
                f"`form` must be one of {FORMS}. Received: form={form!r}"
            )
        keras.utils.set_random_seed(SEED)
        self.form = form
        self.layer = make_layer()
        self.set_chunk_size(chunk_size)
        random = np.random.default_rng(SEED)
        self.other = random.normal(size=(1, OTHER_STEPS, WIDTH))
        inputs = keras.Input((None, WIDTH))
        self.call(inputs, other=inputs)
        # Weights that are all 0 or all 1 would hide what they do.
        for weight in self.layer.trainable_weights:
            value = ops.convert_to_numpy(weight)
            if np.ptp(value) == 0:
                weight.assign(value + 0.1 * random.normal(size=value.shape))

    def call(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        state: Any = None,
        return_state: bool = False,
        training: bool | None = None,
        other: Tensor | None = None,
    ) -> Any:
        """Calls the layer, as layers of its kind are called."""
        if other is None:
            shape = (ops.shape(x)[0], *self.other.shape[1:])
            other = ops.broadcast_to(ops.cast(self.other, "float32"), shape)
        options: dict[str, Any] = {"training": training}
        if state is not None:
            options["initial_state"] = state
        if return_state:
            options["return_state"] = True
        if isinstance(self.layer, TransformerEncoder):
            return self.layer(x, mask=mask, **options)
        if isinstance(self.layer, TransformerDecoder):
            return self._call_decoder(x, mask, other, options)
        if self.form == "cross":
            return self.layer(other, x, value_mask=mask, **options)
        causal = self.form == "causal"
        return self.layer(
            x, x, value_mask=mask, use_causal_mask=causal, **options
        )

    def _call_decoder(
        self, x: Tensor, mask: Any, other: Tensor, options: dict[str, Any]
    ) -> Any:
        if self.layer.cross_attention is not None:
            options["memory"] = other
        if "initial_state" in options:
            options["initial_state"] = {"self": options["initial_state"]}
        outputs = self.layer(x, mask=mask, **options)
        if "return_state" not in options:
            return outputs
        # The state of the cross attention is that of the fixed memory.
        return outputs[0], outputs[1]["self"]

    @property
    def attentions(self) -> list[Any]:
        """The attention layers: itself, or those inside the block."""
        names = ("attention", "self_attention", "cross_attention")
        inner = [getattr(self.layer, name, None) for name in names]
        return [layer for layer in inner if layer is not None] or [self.layer]

    @property
    def streams(self) -> bool:
        """Whether the layer takes and returns a state in this form."""
        attention = self.attentions[0]
        gated = isinstance(attention, GatedRandomFeatureAttention)
        two_sided = gated and self.form == "bidirectional"
        return hasattr(attention, "get_initial_state") and not two_sided

    def call_with_state(self, x: Tensor, mask: Any = None) -> tuple[Any, Any]:
        """Returns outputs and last state; `{}` where there is none."""
        if self.streams:
            return self.call(x, mask, return_state=True)
        return self.call(x, mask), {}

    def initial_state(self, batch_size: int) -> Any:
        """Returns the state before the first step."""
        return self.attentions[0].get_initial_state(batch_size)

    def set_chunk_size(self, chunk_size: int | None) -> None:
        """Sets the chunk size where there is one."""
        for attention in self.attentions:
            if hasattr(attention, "chunk_size"):
                attention.chunk_size = chunk_size

    def expected(
        self, reference: Reference, x: Array, mask: Array | None = None
    ) -> Array:
        """Returns what the outputs should be, by a reference."""
        query = x
        if self.form == "cross":
            query = np.repeat(self.other, len(x), axis=0)
        causal = self.form == "causal"
        return reference(self.layer, query, x, causal=causal, key_mask=mask)

    def sequence(self, batch: int, steps: int) -> np.ndarray:
        """Returns inputs that are always the same."""
        random = np.random.default_rng(steps)
        return random.normal(size=(batch, steps, WIDTH)).astype("float32")

    def model(self, steps: int | None = None) -> keras.Model:
        """Returns a model of the layer between two trainable dense layers."""
        x = keras.Input((steps, WIDTH), name="x")
        other = keras.Input((OTHER_STEPS, WIDTH), name="other")
        before = keras.layers.Dense(WIDTH, name="before")
        y = self.call(before(x), other=before(other))
        y = keras.layers.Dense(WIDTH, name="after")(y)
        # All models have the same two inputs; adding 0 uses both of them.
        y = y + 0 * ops.sum(other, axis=(1, 2), keepdims=True)
        return keras.Model([x, other], y)


@contextlib.contextmanager
def dtype_policy(policy: str) -> Iterator[None]:
    """Makes a policy the global one for a while."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
