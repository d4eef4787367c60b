"""One way to say that an argument does not fit."""

import math
import numbers
import operator
from typing import Any


def check_positive(argument: str, value: Any, least: int = 1) -> int:
    """Returns an integer of at least `least`, or raises a `ValueError`."""
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    if not is_integer or operator.index(value) < least:
        raise ValueError(
            f"`{argument}` must be an integer of at least {least}. "
            f"Received: {argument}={value!r}"
        )
    return operator.index(value)


def check_number(argument: str, value: Any, least: float = 0.0) -> float:
    """Returns a finite number of at least `least`, or raises a `ValueError`."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not least <= value < math.inf:
        raise ValueError(
            f"`{argument}` must be a finite number of at least {least}. "
            f"Received: {argument}={value!r}"
        )
    return float(value)


def check_shape(name: str, received: Any, **expected: Any) -> None:
    """Raises a `ValueError` unless a shape has the expected dimensions.

    Only dimensions that are integers on both sides are compared: others are
    not known yet.

    Args:
        name: string. The argument to name in the error.
        received: a tensor or a shape.
        **expected: the dimensions in order, each under its name; one that may
            have any size is `None`.
    """
    received = tuple(getattr(received, "shape", received))
    if len(received) == len(expected) and all(
        a == b
        for a, b in zip(received, expected.values(), strict=True)
        if isinstance(a, int) and isinstance(b, int)
    ):
        return
    dimensions = [
        f"{key}={size}" if isinstance(size, int) else key
        for key, size in expected.items()
    ]
    raise ValueError(
        f"`{name}` must have shape ({', '.join(dimensions)}). "
        f"Received: {name}.shape={received}"
    )


def check_shapes(name: str, received: Any, **expected: Any) -> None:
    """Raises a `ValueError` unless a dict has tensors of the right shapes.

    Args:
        name: string. The argument to name in the error.
        received: what should be the dict.
        **expected: of each key the dimensions, as in `check_shape`.
    """
    if not isinstance(received, dict) or received.keys() != expected.keys():
        keys = sorted(received) if isinstance(received, dict) else received
        raise ValueError(
            f"`{name}` must be a dict with the keys {sorted(expected)}. "
            f"Received: {name}={keys!r}"
        )
    for key, dimensions in expected.items():
        check_shape(f"{name}[{key!r}]", received[key], **dimensions)


def check_lengths(what: str, **tensors: Any) -> None:
    """Raises a `ValueError` if lengths, along axis 1, are known and differ.

    Args:
        what: string. What needs them to be equal.
        **tensors: two tensors, each under the name of the argument.
    """
    shapes = {name: tuple(x.shape) for name, x in tensors.items()}
    known = {shape[1] for shape in shapes.values()} - {None}
    if len(known) > 1:
        received = [f"{name}.shape={shape}" for name, shape in shapes.items()]
        raise ValueError(
            f"{what} needs as many queries as keys: each step has one of "
            f"both. Received: {', '.join(received)}"
        )


def check_attention_shapes(
    query_features: Any,
    key_features: Any,
    value: Any,
    gate_logits: Any,
    key_mask: Any,
    key_weight: Any,
    causal: bool,
) -> None:
    """Raises a `ValueError` unless the inputs of attention fit each other.

    Args:
        query_features: tensor or `None`, where there is no query.
        key_features: tensor.
        value: tensor or `None`, where only weights are asked for.
        gate_logits: tensor or `None`.
        key_mask: tensor or `None`.
        key_weight: tensor or `None`.
        causal: bool.
    """
    unknown = {"batch": None, "steps": None, "heads": None, "m": None}
    check_shape("key_features", key_features, **unknown)
    batch, steps, heads, m = key_features.shape
    rows = {"batch": batch, "steps": steps}
    if query_features is not None:
        expected = {"batch": batch, "steps": None, "heads": heads, "m": m}
        check_shape("query_features", query_features, **expected)
        if causal or gate_logits is not None:
            check_lengths(
                "Causal or gated attention",
                query_features=query_features,
                key_features=key_features,
            )
    if value is not None:
        check_shape("value", value, **rows, heads=heads, e=None)
    if key_mask is not None:
        check_shape("key_mask", key_mask, **rows)
    if key_weight is not None:
        check_shape("key_weight", key_weight, **rows, heads=heads)
    if gate_logits is not None:
        check_shape("gate_logits", gate_logits, **rows, heads=heads)
