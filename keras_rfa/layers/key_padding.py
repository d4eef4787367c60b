import functools
from typing import Any

import keras
from keras import ops

from keras_rfa.ops.checks import check_shape

Tensor = Any


def key_padding(
    value: Tensor,
    value_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor | None:
    """Combines the masks of an attention layer to one for each key.

    Args:
        value: Tensor of shape `(b, s, value_width)`.
        value_mask: bool tensor of shape `(b, s)` or `None`.
        key_mask: bool tensor of shape `(b, s)` or `None`.
        attention_mask: bool tensor of shape `(b, 1, s)` or `(b, 1, 1, s)`,
            the axis of queries statically 1, or `None`. Its `b` may be 1, for
            all rows.

    Returns:
        bool tensor of shape `(b, s)`, `True` where every mask is, or `None`.

    Raises:
        ValueError: if a mask has another shape.
    """
    batch, steps = value.shape[:2]
    masks = []
    for name, mask in (("value_mask", value_mask), ("key_mask", key_mask)):
        if mask is not None:
            check_shape(name, mask, batch=batch, steps=steps)
            masks.append(ops.cast(mask, "bool"))
    if attention_mask is not None:
        check_key_padding(attention_mask)
        shape = attention_mask.shape
        mask = ops.squeeze(attention_mask, tuple(range(1, len(shape) - 1)))
        rows = 1 if shape[0] == 1 else batch
        check_shape("attention_mask", mask, batch=rows, steps=steps)
        mask = ops.cast(mask, "bool")
        masks.append(ops.broadcast_to(mask, ops.shape(value)[:2]))
    if not masks:
        return None
    return functools.reduce(ops.logical_and, masks)


def check_key_padding(attention_mask: Any) -> None:
    """Raises a `ValueError` unless a mask says the same to every query."""
    shape = tuple(attention_mask.shape)
    if len(shape) not in (3, 4) or set(shape[1:-1]) != {1}:
        raise ValueError(
            "Linear attention gives every query the same keys, so "
            "`attention_mask` must be key padding: a tensor of shape "
            "(batch, 1, key_length) or (batch, 1, 1, key_length). For "
            "causality pass `use_causal_mask=True`; a mask for each pair of "
            "query and key can not be honoured. "
            f"Received: attention_mask.shape={shape}"
        )


def mask_of(tensor: Tensor) -> Tensor | None:
    """Returns the mask that Keras attached to a tensor, if any.

    Keras fills an argument named `mask` only where a layer is called with one
    tensor, and these are also called with states.
    """
    if tensor is None or isinstance(tensor, keras.KerasTensor):
        return getattr(tensor, "_keras_mask", None)
    return _MASK(tensor)


def real_span(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Tells where the padding at the ends of each row begins and ends.

    Args:
        mask: bool tensor of shape `(b, t)`, `True` at real steps.

    Returns:
        The first real step and the one after the last, int32 `(b,)`; twice 0
        for a row without any.
    """
    steps = ops.shape(mask)[1]
    index = ops.arange(1, steps + 1, dtype="int32")
    end = ops.max(ops.where(mask, index, 0), axis=1)
    first = steps - ops.max(ops.where(mask, steps + 1 - index, 0), axis=1)
    return ops.minimum(first, end), end


class _Mask(keras.layers.Layer):
    """Returns its mask. Where Keras keeps masks is not the same everywhere."""

    def __init__(self) -> None:
        super().__init__(autocast=False, name="mask_of")
        self.supports_masking = True

    def call(self, tensor: Tensor, mask: Tensor | None = None) -> Any:
        return mask

    def compute_mask(self, tensor: Tensor, mask: Any = None) -> None:
        return None


_MASK = _Mask()
