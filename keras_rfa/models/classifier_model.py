"""What any model must be, and how it is compiled, to classify texts."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_rfa.ops.checks import check_shape


def check_classifier(
    model: Any, tokenizer: Any, class_names: Sequence[str]
) -> None:
    """Raises a `ValueError` unless model, tokenizer and names fit together.

    Args:
        model: what should be a Functional or Sequential model from token ids
            `(b, t)` to logits `(b, num_classes)`.
        tokenizer: a callable, perhaps with a `vocabulary_size`.
        class_names: the names of the logits.
    """
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
        raise ValueError(
            "`model` must be a Functional or Sequential model that is built, "
            "from token ids (b, t) to logits (b, num_classes). "
            f"Received: model={model!r}"
        )
    check_shape("logits", model.output_shape, batch=None, num_classes=None)
    num_classes = model.output_shape[-1]
    names = class_names if isinstance(class_names, Sequence) else []
    if (
        isinstance(names, str)
        or len(names) != num_classes
        or not all(isinstance(name, str) for name in names)
    ):
        raise ValueError(
            f"`class_names` must be a list of {num_classes} strings, one for "
            f"each class of the model. Received: class_names={class_names!r}"
        )
    if len(set(names)) != num_classes:
        raise ValueError(
            "`class_names` must differ from each other. "
            f"Received: class_names={class_names!r}"
        )
    tokens = getattr(tokenizer, "vocabulary_size", 0)
    limit = vocabulary_size(model)
    if limit is not None and limit < tokens:
        raise ValueError(
            f"The tokenizer has {tokens} ids and the model only {limit}. "
            "Build the model with "
            "`vocabulary_size=tokenizer.vocabulary_size`."
        )


def vocabulary_size(model: keras.Model) -> int | None:
    """Returns how many ids a model has, by the embedding that reads them."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            size = vocabulary_size(layer)
            if size is not None:
                return size
        elif (
            isinstance(layer, keras.layers.Embedding)
            and layer.input is model.inputs[0]
        ):
            return int(layer.input_dim)
    return None


def compile_classifier(
    model: keras.Model,
    optimizer: Any,
    metrics: Sequence[keras.metrics.Metric],
    steps: int,
    multi_label: bool,
) -> None:
    """Compiles a model of logits, with metrics that leave padding out.

    Args:
        model: a model whose batches are those of `bucket_batches`.
        optimizer: Keras optimizer, its name, a function from the number of
            steps to an optimizer, or `None` for AdamW.
        metrics: further metrics.
        steps: int. Steps of the training.
        multi_label: bool. Whether labels are zeros and ones
            `(b, num_classes)` in the place of indices `(b,)`.

    Raises:
        ValueError: if the optimizer is a class.
    """
    if isinstance(optimizer, type):
        raise ValueError(
            "`optimizer` must be an optimizer, its name, or a function from "
            "the number of steps to an optimizer. Received: the class "
            f"{optimizer.__name__}; call it, as in `Adam(0.001)`."
        )
    if optimizer is None:
        optimizer = keras.optimizers.AdamW(
            1e-3, weight_decay=0.01, global_clipnorm=1.0
        )
    elif callable(optimizer):
        optimizer = optimizer(steps)
    kind = "BinaryCrossentropy"
    accuracy = keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)
    if not multi_label:
        kind = "SparseCategoricalCrossentropy"
        accuracy = keras.metrics.SparseCategoricalAccuracy("accuracy")
    measure = getattr(keras.metrics, kind)
    model.compile(
        optimizer,
        getattr(keras.losses, kind)(from_logits=True),
        # Weighted, so that rows of padding do not count.
        weighted_metrics=[
            measure(name="cross_entropy", from_logits=True),
            accuracy,
            *metrics,
        ],
        jit_compile="auto" if keras.backend.backend() == "torch" else True,
    )
