"""Promise 7: SavedModels that answer where keras_rfa is not installed."""

import importlib.util

import keras
import numpy as np
import pytest
import tensorflow as tf
from exports import (
    CLASSES,
    MODELS,
    PIECES,
    TEXTS,
    ask,
    ids_request,
    make_classifier,
    probabilities,
)
from operations import BYTES, WORDPIECES, check_operations
from programs import run_python

import keras_rfa
from keras_rfa.export import export_classifier
from keras_rfa.text import ByteTokenizer, WordpieceTokenizer


def size_of(path):
    return sum(file.stat().st_size for file in path.rglob("*"))


@pytest.mark.parametrize("make_model", MODELS.values(), ids=MODELS)
def test_equal_answers_in_a_process_without_keras(make_model, tmp_path):
    tokenizer = ByteTokenizer()
    model = make_model()
    path = tmp_path / "exported"
    export_classifier(model, tokenizer, CLASSES, path)
    # Batch and length are dynamic: below and above a chunk of 128 steps.
    ids = np.asarray(tokenizer(TEXTS[:1] * 2)), np.asarray(tokenizer(TEXTS))
    answers = ask(
        path,
        [
            {"text": TEXTS[:3]},
            {"text": TEXTS[:1]},
            ids_request(ids[0]),
            ids_request(ids[1]),
        ],
    )
    expected = [tokenizer(TEXTS[:3]), tokenizer(TEXTS[:1]), *ids]
    for (found, labels, dtype), batch in zip(answers, expected, strict=True):
        wanted = probabilities(model, batch)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        assert labels == [CLASSES[i] for i in wanted.argmax(axis=-1)]
        assert dtype == "float32"
    check_operations(path, BYTES)


def test_wordpieces_are_inside(tmp_path):
    tokenizer = WordpieceTokenizer(PIECES)
    model = make_classifier(tokenizer.vocabulary_size)
    path = tmp_path / "exported"
    export_classifier(model, tokenizer, CLASSES, path)
    ((found, _, _),) = ask(path, [{"text": TEXTS}], text=True)
    wanted = probabilities(model, tokenizer(TEXTS))
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    check_operations(path, WORDPIECES)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_float32_whatever_the_policy_of_training(policy, tmp_path):
    tokenizer = ByteTokenizer()
    keras.config.set_dtype_policy(policy)
    try:
        model = make_classifier(tokenizer.vocabulary_size, "rfa_gated")
    finally:
        keras.config.set_dtype_policy("float32")
    path = tmp_path / "exported"
    export_classifier(model, tokenizer, CLASSES, path)
    served = tf.saved_model.load(str(path))
    found = served.signatures["serving_default"](text=tf.constant(TEXTS))
    assert found["probabilities"].dtype == tf.float32
    in_float32 = keras_rfa.export.clone_for_serving(model)
    wanted = probabilities(in_float32, tokenizer(TEXTS))
    np.testing.assert_allclose(found["probabilities"], wanted, atol=1e-5)
    half = probabilities(model, tokenizer(TEXTS))
    np.testing.assert_allclose(wanted, half, atol=0.05)
    assert model.layers[1].compute_dtype == policy.removeprefix("mixed_")


def test_at_most_a_tenth_larger_than_softmax(tmp_path):
    sizes = {}
    for attention in ("softmax", "rfa", "rfa_gated"):
        model = keras_rfa.models.document_classifier(
            8000,
            2,
            num_layers=2,
            hidden_dim=128,
            num_heads=4,
            intermediate_dim=512,
            attention=attention,
        )
        path = tmp_path / attention
        names = ["negative", "positive"]
        export_classifier(model, ByteTokenizer(), names, path)
        model.save(tmp_path / f"{attention}.keras")
        sizes[attention] = (
            size_of(path),
            (tmp_path / f"{attention}.keras").stat().st_size,
        )
    for attention in ("rfa", "rfa_gated"):
        for size, softmax in zip(
            sizes[attention], sizes["softmax"], strict=True
        ):
            assert size <= 1.1 * softmax, sizes


def run_cli(path, *, import_text):
    """Runs the client of TensorFlow that asks a SavedModel."""
    start = "from tensorflow.python.tools.saved_model_cli import main; main()"
    if import_text:
        start = f"import tensorflow_text; {start}"
    expression = f'text=["{TEXTS[0]}"]'
    return run_python(
        "-c",
        f"import sys; sys.modules['keras_rfa'] = None; {start}",
        "run",
        f"--dir={path}",
        "--tag_set=serve",
        "--signature_def=serving_default",
        f"--input_exprs={expression}",
        directory=path.parent,
    ).stdout


@pytest.mark.parametrize("kind", ["bytes", "wordpiece"])
def test_saved_model_cli(kind, tmp_path):
    tokenizer = ByteTokenizer()
    if kind == "wordpiece":
        tokenizer = WordpieceTokenizer(PIECES)
    model = make_classifier(tokenizer.vocabulary_size)
    path = tmp_path / "exported"
    export_classifier(model, tokenizer, CLASSES, path)
    printed = run_cli(path, import_text=kind == "wordpiece")
    label = CLASSES[probabilities(model, tokenizer(TEXTS[:1])).argmax()]
    assert "Result for output key probabilities" in printed
    assert f"[b'{label}']" in printed
    assert "[[b'negative' b'neutral' b'positive']]" in printed


def test_several_labels_at_once(tmp_path):
    tokenizer = ByteTokenizer()
    model = make_classifier(257)
    path = tmp_path / "exported"
    export_classifier(model, tokenizer, CLASSES, path, multi_label=True)
    served = tf.saved_model.load(str(path)).signatures
    answer = served["serving_default"](text=tf.constant(TEXTS))
    assert answer.keys() == {"probabilities", "class_names"}
    check_operations(path, BYTES)
    logits = model.predict_on_batch(np.asarray(tokenizer(TEXTS)))
    wanted = 1 / (1 + np.exp(-logits.astype("float64")))
    np.testing.assert_allclose(answer["probabilities"], wanted, atol=1e-5)
    assert wanted.sum(axis=-1).max() > 1.1  # a softmax would fail
    names = [name.encode() for name in CLASSES]
    assert answer["class_names"].numpy().tolist() == [names] * len(TEXTS)


def test_a_stateful_layer_is_exported_without_its_state(tmp_path):
    ids = keras.Input(batch_shape=(2, 6), dtype="int32")
    x = keras.layers.Embedding(257, 16)(ids)
    layer = keras_rfa.layers.GatedRandomFeatureAttention(2, 8, stateful=True)
    x = layer(x, x, use_causal_mask=True)
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(ids, keras.layers.Dense(3)(x))
    path = tmp_path / "exported"
    export_classifier(model, ByteTokenizer(), CLASSES, path)
    check_operations(path, BYTES)


def test_the_model_stays_as_it_was(tmp_path):
    model = make_classifier(257)
    ids = np.asarray(ByteTokenizer()(TEXTS))
    before = probabilities(model, ids)
    pools = [w for w in model.weights if w.path.endswith("/pool")]
    export_classifier(model, ByteTokenizer(), CLASSES, tmp_path / "new")
    np.testing.assert_array_equal(probabilities(model, ids), before)
    assert len(pools) == 1
    assert pools[0].shape[1] == 199


def test_a_metric_that_keras_cannot_load_is_left_out():
    class Own(keras.metrics.Sum):
        """Not registered with Keras."""

    model = make_classifier(257)
    model.compile("sgd", "mse", metrics=[Own()])
    assert not keras_rfa.export.clone_for_serving(model).compiled


def test_the_same_answers_from_every_backend(tmp_path):
    """A file of this backend is loaded and exported by the other one."""
    model = make_classifier(257, "rfa_gated")
    ids = np.asarray(ByteTokenizer()(TEXTS))
    wanted = probabilities(model, ids)
    model.save(tmp_path / "model.keras")
    names = ("tensorflow", "jax", "torch")
    installed = [name for name in names if is_installed(name)]
    assert keras.backend.backend() in installed
    for backend in installed:
        program = (
            "import keras, numpy, sys, keras_rfa\n"
            "model = keras.models.load_model(sys.argv[1])\n"
            "logits = model.predict(numpy.load(sys.argv[2]), verbose=0)\n"
            "numpy.save(sys.argv[3], logits)\n"
        )
        np.save(tmp_path / "ids.npy", ids)
        files = ("model.keras", "ids.npy", "logits.npy")
        run_python(
            "-c", program, *files, directory=tmp_path, KERAS_BACKEND=backend
        )
        logits = np.load(tmp_path / "logits.npy")
        found = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def is_installed(name):
    return importlib.util.find_spec(name) is not None
