from typing import Any

from keras import ops

Tensor = Any


def key_padding(
    value_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor | None:
    """Combines the masks of an attention layer to one for each key.

    Args:
        value_mask: bool tensor of shape `(b, s)` or `None`.
        key_mask: bool tensor of shape `(b, s)` or `None`.
        attention_mask: bool tensor of shape `(b, 1, s)` or `(b, 1, 1, s)`,
            the axis of queries statically 1, or `None`.

    Returns:
        bool tensor of shape `(b, s)`, `True` where every mask is, or `None`.

    Raises:
        ValueError: if `attention_mask` has another shape.
    """
    if attention_mask is not None:
        check_key_padding(attention_mask)
        shape = attention_mask.shape
        attention_mask = ops.squeeze(
            attention_mask, tuple(range(1, len(shape) - 1))
        )
    masks = [
        ops.cast(mask, "bool")
        for mask in (value_mask, key_mask, attention_mask)
        if mask is not None
    ]
    if not masks:
        return None
    combined = masks[0]
    for mask in masks[1:]:
        combined = ops.logical_and(combined, mask)
    return combined


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
    return getattr(tensor, "_keras_mask", None)
