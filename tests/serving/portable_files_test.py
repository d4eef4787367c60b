"""LiteRT and ONNX files, asked by runtimes without TensorFlow."""

import pathlib

import keras
import numpy as np
import pytest
from exports import MODELS, make_classifier

from keras_rfa.export import export_litert, export_onnx
from keras_rfa.export.new_directory import new_file

NAMES = ["softmax", "rfa", "rfa_gated", "linear", "performer", "causal gated"]
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


def batches():
    """Batch and length are free: below and above a chunk of 128 steps."""
    random = np.random.default_rng(0)
    for rows, columns in ((1, 1), (3, 7), (2, 300)):
        ids = random.integers(1, 257, (rows, columns), "int32")
        ids[-1, columns // 2 :] = 0  # padding; of the first, all of it
        yield ids


def ask_litert(path, ids):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    (given,) = interpreter.get_input_details()
    interpreter.resize_tensor_input(given["index"], ids.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(given["index"], ids)
    interpreter.invoke()
    (result,) = interpreter.get_output_details()
    return interpreter.get_tensor(result["index"])


def ask_onnx(path, ids):
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    (given,) = session.get_inputs()
    return session.run(None, {given.name: ids})[0]


FORMATS = {
    "model.tflite": (export_litert, ask_litert),
    "model.onnx": (export_onnx, ask_onnx),
}


@pytest.mark.parametrize("file", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_equal_answers_in_another_runtime(name, file, tmp_path):
    export, ask = FORMATS[file]
    model = MODELS[name]()
    if not ON_TENSORFLOW:
        with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow"):
            export(model, tmp_path / file)
        assert list(tmp_path.iterdir()) == []
        return
    export(model, tmp_path / file)
    for ids in batches():
        wanted = model.predict_on_batch(ids)
        found = ask(tmp_path / file, ids)
        np.testing.assert_allclose(found, wanted, atol=1e-5)


@keras.saving.register_keras_serializable("portable_files_test")
class InverseErrorFunction(keras.layers.Layer):
    def call(self, x):
        return keras.ops.erfinv(x)


def test_what_has_no_form_in_onnx_is_refused(tmp_path):
    ids = keras.Input((None,), dtype="int32")
    x = InverseErrorFunction()(keras.layers.Embedding(257, 4)(ids))
    model = keras.Model(ids, keras.layers.GlobalAveragePooling1D()(x))
    message = "no form in ONNX" if ON_TENSORFLOW else "KERAS_BACKEND=tensorflow"
    with pytest.raises(ValueError, match=message):
        export_onnx(model, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("export", [export_litert, export_onnx])
def test_the_ending_tells_the_format(export, tmp_path):
    with pytest.raises(ValueError, match=r"must end in '\.(tflite|onnx)'"):
        export(make_classifier(257), tmp_path / "model.keras")
    assert list(tmp_path.iterdir()) == []


def write_half_of(path):
    with new_file(path, overwrite=True) as written:
        pathlib.Path(written).write_text("ha")
        raise RuntimeError("half written")


def test_files_are_replaced_on_request_only(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_text("keep")
    with (
        pytest.raises(FileExistsError, match="overwrite=True"),
        new_file(path),
    ):
        pass
    with pytest.raises(RuntimeError, match="half"):
        write_half_of(path)
    assert path.read_text() == "keep"
    with new_file(path, overwrite=True) as written:
        pathlib.Path(written).write_text("new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_is_never_replaced(tmp_path):
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    for name in ("directory", "link"):
        with (
            pytest.raises(FileExistsError, match="is no file"),
            new_file(tmp_path / name, overwrite=True),
        ):
            pass
