"""Promise 7: SavedModels that answer where keras_rfa is not installed."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from programs import run_python

import keras_rfa
from keras_rfa.export import export_classifier
from keras_rfa.models.attention import ATTENTIONS
from keras_rfa.text import ByteTokenizer, WordpieceTokenizer

TEXTS = ["A splendid film.", "", "dull " * 60, "\N{SNOWMAN} and \x00 bytes"]
CLASSES = ["negative", "neutral", "positive"]
PIECES = ["[PAD]", "[UNK]", "a", "film", "dull", "splend", "##id", "."]

# Runs where keras_rfa can not be imported; nor Keras, which only TensorFlow
# Text needs.
CLIENT = """
import json, sys
sys.modules["keras_rfa"] = None
if sys.argv[3] == "text":
    import tensorflow_text
else:
    sys.modules["keras"] = None
import tensorflow as tf
served = tf.saved_model.load(sys.argv[1])
answers = []
for request in json.loads(sys.argv[2]):
    name = "token_ids" if "token_ids" in request else "serving_default"
    dtype = tf.int32 if name == "token_ids" else tf.string
    request = {k: tf.constant(v, dtype) for k, v in request.items()}
    answer = served.signatures[name](**request)
    answers.append([
        answer["probabilities"].numpy().tolist(),
        [label.decode() for label in answer["label"].numpy()],
        answer["probabilities"].dtype.name,
    ])
print("ANSWERS", json.dumps(answers))
"""


def make_classifier(vocabulary_size, attention="rfa", **arguments):
    model = keras_rfa.models.document_classifier(
        vocabulary_size,
        3,
        num_layers=1,
        hidden_dim=16,
        num_heads=2,
        intermediate_dim=32,
        attention=attention,
        **arguments,
    )
    # Weights that are not those of the beginning, so that a clone which lost
    # them would be noticed.
    for weight in model.trainable_weights:
        noise = keras.random.normal(weight.shape, stddev=0.3)
        weight.assign_add(keras.ops.cast(noise, weight.dtype))
    return model


def probabilities(model, ids):
    logits = model.predict_on_batch(np.asarray(ids)).astype("float64")
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def ask(path, requests, *, text=False):
    kind = "text" if text else "core"
    printed = run_python(
        "-c",
        CLIENT,
        path,
        json.dumps(requests),
        kind,
        directory=path.parent,
        CUDA_VISIBLE_DEVICES="-1",
    ).stdout
    (line,) = [
        line for line in printed.splitlines() if line.startswith("ANSWERS ")
    ]
    return json.loads(line.removeprefix("ANSWERS "))


def operations(path):
    """All operations of the graph and its functions."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved = saved_model_pb2.SavedModel()
    saved.ParseFromString((path / "saved_model.pb").read_bytes())
    graph = saved.meta_graphs[0].graph_def
    names = {node.op for node in graph.node}
    restoring = ("__inference__traced_restore", "__inference__traced_save")
    for function in graph.library.function:
        if not function.signature.name.startswith(restoring):
            names |= {node.op for node in function.node_def}
    return names


def size_of(path):
    return sum(file.stat().st_size for file in path.rglob("*"))


@keras.saving.register_keras_serializable(package="export_test")
def squares(x, projection):
    """A feature map of one's own."""
    angles = keras.ops.einsum("bthd,hDd->bthD", x, projection)
    return keras.ops.square(angles)


def cross(num_heads, key_dim, name):
    layer = keras_rfa.layers.CrossRandomFeatureAttention
    return layer(num_heads, key_dim, name=name)


def own_feature_map(num_heads, key_dim, name):
    layer = keras_rfa.layers.RandomFeatureAttention
    return layer(num_heads, key_dim, feature_map=squares, name=name)


def make_causal_classifier(attention):
    """Decoder blocks instead of encoder blocks."""
    layers = keras_rfa.layers
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(257, 16, mask_zero=True)(ids)
    x = layers.TransformerDecoder(attention(2, 8), 32)(x)
    x = layers.MaskedAveragePooling()(x)
    return keras.Model(ids, keras.layers.Dense(3)(x))


MODELS = {
    **{
        name: lambda name=name: make_classifier(257, name)
        for name in ATTENTIONS
    },
    "cross": lambda: make_classifier(257, cross),
    "own feature map": lambda: make_classifier(257, own_feature_map),
    "causal": lambda: make_causal_classifier(
        keras_rfa.layers.RandomFeatureAttention
    ),
    "causal gated": lambda: make_causal_classifier(
        keras_rfa.layers.GatedRandomFeatureAttention
    ),
}


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
            {"token_ids": ids[0].tolist()},
            {"token_ids": ids[1].tolist()},
        ],
    )
    expected = [tokenizer(TEXTS[:3]), tokenizer(TEXTS[:1]), *ids]
    for (found, labels, dtype), batch in zip(answers, expected, strict=True):
        wanted = probabilities(model, batch)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        assert labels == [CLASSES[i] for i in wanted.argmax(axis=-1)]
        assert dtype == "float32"
    assert not [name for name in operations(path) if "Assign" in name]


def test_wordpieces_are_inside(tmp_path):
    tokenizer = WordpieceTokenizer(PIECES)
    model = make_classifier(tokenizer.vocabulary_size)
    path = tmp_path / "exported"
    export_classifier(model, tokenizer, CLASSES, path)
    ((found, _, _),) = ask(path, [{"text": TEXTS}], text=True)
    wanted = probabilities(model, tokenizer(TEXTS))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


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


def test_nothing_is_half_written(tmp_path):
    model = make_classifier(257)

    def broken_tokenizer(texts):
        raise RuntimeError("no tokens today")

    path = tmp_path / "exported"
    with pytest.raises(RuntimeError, match="no tokens today"):
        export_classifier(model, broken_tokenizer, CLASSES, path)
    assert list(tmp_path.iterdir()) == []
    export_classifier(model, ByteTokenizer(), CLASSES, path)
    before = sorted(path.rglob("*"))
    with pytest.raises(RuntimeError, match="no tokens today"):
        export_classifier(
            model, broken_tokenizer, CLASSES, path, overwrite=True
        )
    assert sorted(path.rglob("*")) == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_directory_is_kept_unless_asked(tmp_path):
    model = make_classifier(257)
    path = tmp_path / "exported"
    path.mkdir()
    (path / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        export_classifier(model, ByteTokenizer(), CLASSES, path)
    assert (path / "mine.txt").read_text() == "keep"
    export_classifier(model, ByteTokenizer(), CLASSES, path, overwrite=True)
    assert not (path / "mine.txt").exists()
    assert (path / "saved_model.pb").exists()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b"], r"3 strings, one for each class.*\['a', 'b'\]"),
        ("abc", "3 strings"),
        ({"a", "b", "c"}, "3 strings"),
        ([1, 2, 3], "3 strings"),
        (["a", "b", "b"], r"differ.*\['a', 'b', 'b'\]"),
    ],
)
def test_class_names_must_fit(names, message, tmp_path):
    model = make_classifier(257)
    with pytest.raises(ValueError, match=message):
        export_classifier(model, ByteTokenizer(), names, tmp_path / "exported")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nested", [False, True])
def test_the_tokenizer_must_fit(nested, tmp_path):
    model = make_classifier(100)
    if nested:
        ids = keras.Input((None,), dtype="int32")
        model = keras.Model(ids, model(ids))
    with pytest.raises(ValueError, match="257 ids and the model only 100"):
        export_classifier(model, ByteTokenizer(), CLASSES, tmp_path / "new")


def test_a_stateful_layer_is_exported_without_its_state(tmp_path):
    ids = keras.Input(batch_shape=(2, 6), dtype="int32")
    x = keras.layers.Embedding(257, 16)(ids)
    layer = keras_rfa.layers.GatedRandomFeatureAttention(2, 8, stateful=True)
    x = layer(x, x, use_causal_mask=True)
    x = keras.layers.GlobalAveragePooling1D()(x)
    model = keras.Model(ids, keras.layers.Dense(3)(x))
    path = tmp_path / "exported"
    export_classifier(model, ByteTokenizer(), CLASSES, path)
    assert not {op for op in operations(path) if op.startswith("Assign")}


def test_the_model_must_be_a_classifier(tmp_path):
    model = keras_rfa.models.document_encoder(
        257, num_layers=1, hidden_dim=8, num_heads=1, intermediate_dim=8
    )
    with pytest.raises(ValueError, match="`logits` must have shape"):
        export_classifier(model, ByteTokenizer(), CLASSES, tmp_path / "new")


def test_what_is_no_directory_is_never_replaced(tmp_path):
    model = make_classifier(257)
    (tmp_path / "file").write_text("keep")
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError, match="is no directory"):
            export_classifier(
                model, ByteTokenizer(), CLASSES, tmp_path / name, overwrite=True
            )
    assert (tmp_path / "file").read_text() == "keep"


def test_a_batch_of_nothing_has_no_answers(tmp_path):
    path = tmp_path / "exported"
    export_classifier(make_classifier(257), ByteTokenizer(), CLASSES, path)
    served = tf.saved_model.load(str(path)).signatures
    answer = served["serving_default"](text=tf.constant([], tf.string))
    assert answer["probabilities"].shape == (0, 3)
    answer = served["token_ids"](token_ids=tf.zeros((2, 0), tf.int32))
    assert np.isfinite(answer["probabilities"]).all()


def test_ids_that_the_model_does_not_have_are_an_error(tmp_path):
    model = make_classifier(257)
    path = tmp_path / "exported"
    export_classifier(model, ByteTokenizer(), CLASSES, path)
    signature = tf.saved_model.load(str(path)).signatures["token_ids"]
    for ids in ([[1, 257]], [[-1]]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="0 to 256"):
            signature(token_ids=tf.constant(ids, tf.int32))


def test_the_model_stays_as_it_was(tmp_path):
    model = make_classifier(257)
    ids = np.asarray(ByteTokenizer()(TEXTS))
    before = probabilities(model, ids)
    pools = [w for w in model.weights if w.path.endswith("/pool")]
    export_classifier(model, ByteTokenizer(), CLASSES, tmp_path / "new")
    np.testing.assert_array_equal(probabilities(model, ids), before)
    assert len(pools) == 1
    assert pools[0].shape[1] == 199


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
    import importlib.util

    return importlib.util.find_spec(name) is not None
