"""All promises, and a way to check them together."""

from collections.abc import Callable, Iterable
from typing import Any

from keras_rfa.testing.reference import attention_reference
from keras_rfa.testing.saving import check_saving
from keras_rfa.testing.subject import MakeLayer, Reference
from keras_rfa.testing.training import (
    check_fit,
    check_graph_size,
    check_linear_growth,
    check_precision,
)
from keras_rfa.testing.values import (
    check_attention_scores,
    check_causality,
    check_chunk_size,
    check_padding,
    check_reference,
    check_streaming,
)

CHECKS: tuple[Callable[..., None], ...] = (
    check_reference,
    check_streaming,
    check_chunk_size,
    check_attention_scores,
    check_padding,
    check_causality,
    check_fit,
    check_graph_size,
    check_linear_growth,
    check_precision,
    check_saving,
)


def check_all(
    make_layer: MakeLayer,
    form: str = "causal",
    reference: Reference | None = attention_reference,
    modules: Iterable[str] = (),
) -> None:
    """Checks every promise; see the functions in `CHECKS`.

    Those that a form or a layer does not make are passed over: causality
    where nothing is causal, streams where the layer takes no state.

    Args:
        make_layer: function without arguments that returns a new layer, which
            must take inputs of width 12.
        form: string, one of `"causal"`, `"bidirectional"` and `"cross"`.
        reference: as in `check_reference`.
        modules: as in `check_saving`.
    """
    arguments: dict[Any, dict[str, Any]] = {
        check_reference: {"reference": reference},
        check_precision: {"reference": reference},
        check_saving: {"modules": modules},
    }
    for check in CHECKS:
        check(make_layer, form, **arguments.get(check, {}))
