"""The state of linear attention: sums over the keys that have been read."""

from typing import Any

import keras
from keras import ops

from keras_rfa.ops.shapes import check_shape

Tensor = Any
State = dict[str, Tensor]


def zero_state(
    batch_size: Any,
    num_heads: int,
    feature_dim: int,
    value_dim: int,
    dtype: str = "float32",
) -> State:
    """Returns the state of a layer that has not read anything.

    Returns:
        `{"s": (b, h, m, e), "z": (b, h, m), "weight": (b, h)}`, all zero.
    """
    heads = (batch_size, num_heads)
    return {
        "s": ops.zeros((*heads, feature_dim, value_dim), dtype=dtype),
        "z": ops.zeros((*heads, feature_dim), dtype=dtype),
        "weight": ops.zeros(heads, dtype=dtype),
    }


def check_state(
    state: Any,
    batch_size: Any,
    num_heads: int,
    feature_dim: int,
    value_dim: int,
    dtype: str = "float32",
    with_indices: bool = False,
) -> None:
    """Raises a `ValueError` unless `state` has the right keys and shapes.

    Args:
        with_indices: bool. Whether the state may hold `"indices"` `(h,)`, the
            matrices of a pool that it was made with.
    """
    required = {"s", "z", "weight"}
    allowed = required | ({"indices"} if with_indices else set())
    if not isinstance(state, dict) or not required <= state.keys() <= allowed:
        received = sorted(state) if isinstance(state, dict) else type(state)
        also = ' and may have the key "indices"' if with_indices else ""
        raise ValueError(
            f"`initial_state` must be a dict with the keys {sorted(required)}"
            f"{also}, such as `return_state=True` gives. Received: {received}"
        )
    heads = {"batch": batch_size, "heads": num_heads}
    shapes = {
        "s": {**heads, "features": feature_dim, "value_dim": value_dim},
        "z": {**heads, "features": feature_dim},
        "weight": heads,
        "indices": {"heads": num_heads},
    }
    for name, tensor in state.items():
        check_shape(f"initial_state[{name!r}]", tensor, **shapes[name])
        expected = "int32" if name == "indices" else dtype
        received = keras.backend.standardize_dtype(tensor.dtype)
        if received != expected:
            raise ValueError(
                f"`initial_state[{name!r}]` must have dtype {expected}, "
                "whatever the dtype policy: sums lose their last terms in "
                f"half precision. Received: dtype={received}"
            )
