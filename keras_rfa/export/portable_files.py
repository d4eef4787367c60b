"""Models for runtimes smaller than TensorFlow: LiteRT and ONNX Runtime."""

import os
from typing import Any

import keras
import numpy as np

from keras_rfa.export.new_directory import new_file
from keras_rfa.export.serving_model import clone_for_serving


def export_litert(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> None:
    """Writes a model as a LiteRT (TensorFlow Lite) file.

    It uses built-in operations alone, so that the runtime for devices, the
    package `ai-edge-litert`, runs it without TensorFlow. Batch size and length
    are free. The tokenizer is not in it: ids come from the same tokenizer
    wherever it runs, and what the model gives are logits.

    Args:
        model: a model from token ids `(b, t)` to logits, on the TensorFlow
            backend. It does not change; the file is float32.
        path: the file to write, ending in `.tflite`. It appears whole or not
            at all.
        overwrite: bool. Whether to replace a file that exists.

    Raises:
        ValueError: on another backend than TensorFlow, or for another ending.
        FileExistsError: if `path` exists and `overwrite` is `False`.

    Example:

    >>> keras_rfa.export.export_litert(model, "model.tflite")
    >>> from ai_edge_litert.interpreter import Interpreter
    >>> run = Interpreter("model.tflite").get_signature_runner()
    >>> run(token_ids=np.ones((1, 1000), "int32"))["output_0"].shape
    (1, 2)
    """
    _check("LiteRT", path, ".tflite")
    import tensorflow as tf

    with new_file(path, overwrite=overwrite) as file:
        clone_for_serving(model).export(
            file,
            format="litert",
            verbose=False,
            target_spec={"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]},
        )


def export_onnx(
    model: keras.Model,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> None:
    """Writes a model as an ONNX file, for ONNX Runtime and the like.

    Batch size and length are free. The tokenizer is not in it, and what the
    model gives are logits.

    Args:
        model: a model from token ids `(b, t)` to logits, on the TensorFlow
            backend. It does not change; the file is float32.
        path: the file to write, ending in `.onnx`. It appears whole or not at
            all.
        overwrite: bool. Whether to replace a file that exists.

    Raises:
        ValueError: on another backend than TensorFlow, for another ending, or
            for a model with an operation that has no form in ONNX.
        FileExistsError: if `path` exists and `overwrite` is `False`.
        ImportError: if `tf2onnx` is not installed.

    Example:

    >>> keras_rfa.export.export_onnx(model, "model.onnx")
    >>> session = onnxruntime.InferenceSession("model.onnx")
    >>> ids = np.ones((1, 1000), "int32")
    >>> session.run(None, {"token_ids": ids})[0].shape
    (1, 2)
    """
    _check("ONNX", path, ".onnx")
    _teach_tf2onnx()
    with new_file(path, overwrite=overwrite) as file:
        clone = clone_for_serving(model)
        clone(np.zeros((1, 1), "int32"))  # Keras exports what was called.
        clone.export(file, format="onnx", verbose=False)
        _check_onnx(file)


def _check(name: str, path: str | os.PathLike[str], ending: str) -> None:
    if not os.fspath(path).endswith(ending):
        raise ValueError(
            f"`path` must end in {ending!r}. Received: path={str(path)!r}"
        )
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"{name} files are written from the TensorFlow backend. Save the "
            "model with `model.save('model.keras')`, and load and export it "
            "with KERAS_BACKEND=tensorflow. "
            f"Received: backend {keras.backend.backend()!r}"
        )


def _teach_tf2onnx() -> None:
    """Says what two operations of TensorFlow are that `tf2onnx` lacks."""
    try:
        from tf2onnx.handler import tf_op
    except ImportError as error:
        raise ImportError(
            "Writing an ONNX file needs `tf2onnx`. "
            'Install it with `pip install "keras_rfa[onnx]"`.'
        ) from error

    @tf_op("Erfc")
    class Erfc:
        """`1 - erf(x)`, of which TensorFlow makes an exact gelu."""

        @classmethod
        def version_9(cls, ctx: Any, node: Any, **_: Any) -> None:
            one = ctx.make_const(f"{node.name}/one", np.float32(1))
            erf = ctx.make_node("Erf", node.input)
            node.type = "Sub"
            ctx.replace_inputs(node, [one.output[0], erf.output[0]])

    @tf_op("Expm1")
    class Expm1:
        """`tanh(x/2) (exp(x) + 1)`, which keeps the digits of small `x`."""

        @classmethod
        def version_9(cls, ctx: Any, node: Any, **_: Any) -> None:
            one = ctx.make_const(f"{node.name}/one", np.float32(1))
            half = ctx.make_const(f"{node.name}/half", np.float32(0.5))
            x = node.input[0]
            halved = ctx.make_node("Mul", [x, half.output[0]])
            tanh = ctx.make_node("Tanh", halved.output)
            exp = ctx.make_node("Exp", [x])
            above = ctx.make_node("Add", [exp.output[0], one.output[0]])
            node.type = "Mul"
            ctx.replace_inputs(node, [tanh.output[0], above.output[0]])


def _check_onnx(file: str) -> None:
    """Raises a `ValueError` for what `tf2onnx` wrote but could not convert."""
    import onnx

    try:
        onnx.checker.check_model(file)
    except onnx.checker.ValidationError as error:
        raise ValueError(
            "The model has an operation that has no form in ONNX. Write a "
            "LiteRT file or a SavedModel, or build the model with another "
            f"attention or activation. Received: {error}"
        ) from error
