"""The file beside a saved model that makes a classifier of texts of it."""

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import keras

import keras_rfa

FORMAT = 1
NAME = "classifier.json"


def serialise(
    tokenizer: Any, class_names: Sequence[str], multi_label: bool
) -> dict[str, Any]:
    """Returns all that `write` writes.

    Args:
        tokenizer: an object that Keras can serialise.
        class_names: list of strings.
        multi_label: bool. Whether a text has any number of classes.

    Raises:
        ValueError: if Keras cannot serialise the tokenizer.
    """
    if not hasattr(tokenizer, "get_config"):
        raise ValueError(
            "The tokenizer cannot be saved: its class needs `get_config` and "
            "`@keras.saving.register_keras_serializable()`. "
            f"Received: tokenizer={tokenizer!r}"
        )
    return {
        "format": FORMAT,
        "keras_rfa": keras_rfa.__version__,
        "keras": keras.__version__,
        "class_names": list(class_names),
        "multi_label": multi_label,
        "tokenizer": keras.saving.serialize_keras_object(tokenizer),
    }


def write(directory: str, config: dict[str, Any]) -> None:
    """Writes what `serialise` returned beside a model."""
    with open(f"{directory}/{NAME}", "w") as file:
        json.dump(config, file, indent=2)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the arguments of a `TextClassifier`, with its model.

    Args:
        path: the folder with `classifier.json` and `model.keras`.

    Raises:
        ValueError: if it is no such folder, or of another format.
    """
    file = pathlib.Path(path, NAME)
    model = pathlib.Path(path, "model.keras")
    if not (file.is_file() and model.is_file()):
        raise ValueError(
            "`path` must be a folder that `TextClassifier.save` has written, "
            f"with `{NAME}` and `model.keras`. Received: path={str(path)!r}"
        )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        version = config["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"{str(file)!r} is damaged. Save the classifier again."
        ) from error
    if version != FORMAT:
        raise ValueError(
            f"{str(file)!r} must have format {FORMAT}. Received: format "
            f"{version!r}. Load it with keras_rfa {config['keras_rfa']}."
        )
    return {
        "model": keras.models.load_model(model),
        "tokenizer": keras.saving.deserialize_keras_object(config["tokenizer"]),
        "class_names": config["class_names"],
        "multi_label": config["multi_label"],
    }
