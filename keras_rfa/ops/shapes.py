"""One way to say that a shape does not fit."""

from typing import Any


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
