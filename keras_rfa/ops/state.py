"""The state of linear attention: sums over the keys that have been read."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import ops

from keras_rfa.ops.checks import check_shape

Tensor = Any
State = dict[str, Tensor]

# Sums lose their last terms in half precision, so this is their dtype
# whatever that of the inputs.
SUM_DTYPE = "float32"


def zero_state(
    batch_size: Any,
    num_heads: int,
    feature_dim: int,
    value_dim: int,
) -> State:
    """Returns the state of a layer that has not read anything.

    Args:
        batch_size: int. Rows, `b`.
        num_heads: int. Heads, `h`.
        feature_dim: int. Width of the features, `m`.
        value_dim: int. Width of the values, `e`.

    Returns:
        `{"s": (b, h, m, e), "z": (b, h, m), "weight": (b, h)}`, all zero,
        in float32.
    """
    heads = (batch_size, num_heads)
    return {
        "s": ops.zeros((*heads, feature_dim, value_dim), SUM_DTYPE),
        "z": ops.zeros((*heads, feature_dim), SUM_DTYPE),
        "weight": ops.zeros(heads, SUM_DTYPE),
    }


def nested(tensors: Iterable[tuple[Sequence[str], Tensor]]) -> dict[str, Any]:
    """Returns tensors as the nested dict of which their paths are the keys."""
    state: dict[str, Any] = {}
    for (*path, last), tensor in tensors:
        part = state
        for key in path:
            part = part.setdefault(key, {})
        part[last] = tensor
    return state


def check_state(
    state: Any,
    batch_size: Any,
    num_heads: int | None,
    feature_dim: int | None,
    value_dim: int | None,
    with_indices: bool = False,
    name: str = "initial_state",
) -> None:
    """Raises a `ValueError` unless `state` has the right keys and shapes.

    Args:
        state: what was received.
        batch_size: int or `None`, like the following: what must be there.
        num_heads: int. Heads, `h`.
        feature_dim: int. Width of the features, `m`.
        value_dim: int. Width of the values, `e`.
        with_indices: bool. Whether the state may hold `"indices"` `(h,)`, the
            matrices of a pool that it was made with.
        name: string. The argument to name in the error.
    """
    required = {"s", "z", "weight"}
    allowed = required | ({"indices"} if with_indices else set())
    if not isinstance(state, dict) or not required <= state.keys() <= allowed:
        received = sorted(state) if isinstance(state, dict) else type(state)
        also = ' and may have the key "indices"' if with_indices else ""
        raise ValueError(
            f"`{name}` must be a dict with the keys {sorted(required)}"
            f"{also}, such as `return_state=True` gives. Received: {received}"
        )
    heads = {"batch": batch_size, "heads": num_heads}
    shapes = {
        "s": {**heads, "features": feature_dim, "value_dim": value_dim},
        "z": {**heads, "features": feature_dim},
        "weight": heads,
        "indices": {"heads": num_heads},
    }
    for key, tensor in state.items():
        check_shape(f"{name}[{key!r}]", tensor, **shapes[key])
        expected = "int32" if key == "indices" else SUM_DTYPE
        received = keras.backend.standardize_dtype(tensor.dtype)
        if received != expected:
            raise ValueError(
                f"`{name}[{key!r}]` must have dtype {expected}, "
                "whatever the dtype policy: sums lose their last terms in "
                f"half precision. Received: dtype={received}"
            )
