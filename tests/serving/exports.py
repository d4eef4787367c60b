"""Models to export, and a process that asks what was exported."""

import json

import keras
import numpy as np
from programs import run_python

import keras_rfa
from keras_rfa.models.attention import ATTENTIONS

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
    return with_noise(model)


def with_noise(model):
    """Moves the weights away from those of the beginning.

    A clone that lost them would be noticed.
    """
    for weight in model.trainable_weights:
        noise = keras.random.normal(weight.shape, stddev=0.3)
        weight.assign_add(keras.ops.cast(noise, weight.dtype))
    return model


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
    return with_noise(keras.Model(ids, keras.layers.Dense(3)(x)))


MODELS = {
    **{
        name: lambda name=name: make_classifier(257, name)
        for name in ATTENTIONS
    },
    "convolution": lambda: make_classifier(257, convolution=3),
    "cross": lambda: make_classifier(257, cross),
    "own feature map": lambda: make_classifier(257, own_feature_map),
    "causal": lambda: make_causal_classifier(
        keras_rfa.layers.RandomFeatureAttention
    ),
    "causal gated": lambda: make_causal_classifier(
        keras_rfa.layers.GatedRandomFeatureAttention
    ),
}


def probabilities(model, ids):
    logits = model.predict_on_batch(np.asarray(ids)).astype("float64")
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def ids_request(ids):
    """What the signature `token_ids` takes, with every id a real one."""
    ids = np.asarray(ids, "int32")
    lengths = np.full(len(ids), ids.shape[1], "int32")
    return {"token_ids": ids.tolist(), "lengths": lengths.tolist()}


def ask(path, requests, *, text=False):
    """Returns the answers of a process without `keras_rfa`."""
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
