"""What two trainings must have in common for one to resume the other."""

import json
import re
from collections.abc import Iterator
from typing import Any

import keras

import keras_rfa


def fingerprint(
    model: keras.Model, callbacks: list[keras.callbacks.Callback]
) -> dict[str, Any]:
    """Returns what must be the same, as JSON.

    Seeds and a learning rate that is a number are not part of it, since all
    they decide is in the variables.

    Args:
        model: a compiled model, built like its optimizer.
        callbacks: list of callbacks whose state is saved.
    """
    config = _config(model)
    compiled = config.pop("compile_config", None) or {}
    numbers: dict[str, list[str]] = {}
    variables: dict[str, list[str]] = {"model": [], "optimizer": []}
    for variable in model.variables:
        words = [_renumber(x, numbers) for x in variable.path.split("/")]
        variables["model"].append(f"{'/'.join(words)}: {_describe(variable)}")
    for variable in model.optimizer.variables:
        variables["optimizer"].append(_describe(variable))
    return {
        "keras_rfa": keras_rfa.__version__,
        "keras": keras.__version__,
        "backend": keras.backend.backend(),
        "model": config,
        "loss": compiled.get("loss"),
        "loss_weights": compiled.get("loss_weights"),
        "optimizer": _config(model.optimizer),
        "variables": variables,
        "callbacks": [type(callback).__name__ for callback in callbacks],
    }


def differences(saved: Any, here: Any, where: str = "") -> Iterator[str]:
    """Yields a sentence for each place in which two values differ.

    Args:
        saved: JSON from a file.
        here: JSON.
        where: string. Where they are.
    """
    if isinstance(saved, dict) and isinstance(here, dict):
        pairs: list[Any] = [
            (key, saved.get(key), here.get(key)) for key in {**saved, **here}
        ]
    elif isinstance(saved, list) and isinstance(here, list):
        if len(saved) != len(here):
            yield f"{where} has {len(saved)} in the file and {len(here)} here"
        pairs = [
            (i, *pair) for i, pair in enumerate(zip(saved, here, strict=False))
        ]
    else:
        if saved != here:
            yield f"{where} is {saved!r} in the file and {here!r} here"
        return
    for key, first, second in pairs:
        yield from differences(first, second, f"{where}/{key}".lstrip("/"))


def _describe(variable: Any) -> str:
    return f"{variable.dtype} {tuple(variable.shape)}"


def _config(instance: Any) -> dict[str, Any]:
    """Returns the configuration as JSON, or nothing where there is none."""
    try:
        text = json.dumps(keras.saving.serialize_keras_object(instance))
    except (NotImplementedError, TypeError, ValueError):
        return {}  # a class of the user's that Keras or JSON cannot write
    return _comparable(json.loads(text), {})


def _comparable(value: Any, number: dict[str, list[str]]) -> Any:
    """Leaves out what the variables hold, and renumbers names."""
    if isinstance(value, list):
        return [_comparable(item, number) for item in value]
    if isinstance(value, dict):
        return {
            key: _comparable(item, number)
            for key, item in value.items()
            if key not in ("seed", "build_config")
            and not (key == "learning_rate" and isinstance(item, int | float))
        }
    return _renumber(value, number) if isinstance(value, str) else value


def _renumber(name: str, number: dict[str, list[str]]) -> str:
    """Numbers names such as `dense_7` in the order in which they come.

    Keras numbers layers through the process, not through the model.
    """
    stem = re.sub(r"_\d+$", "", name)
    names = number.setdefault(stem, [])
    if name not in names:
        names.append(name)
    position = names.index(name)
    return f"{stem}_{position}" if position else stem
