"""Asking exported models of sequences, also in a process of its own."""

import json

import numpy as np
import tensorflow as tf
from programs import run_python

import keras_rfa

# Beside those of models that read at once: loops, states, the choice of tokens
# and random numbers, from both backends. All are TensorFlow's own.
LOOPS = """
    AddV2 Any BitwiseOr BroadcastTo ConcatV2 Cumsum Equal Fill FloorDiv Greater
    IsFinite LeftShift Log LogicalNot LogicalOr Minimum Neg NotEqual
    PartitionedCall RealDiv Reshape
    StatelessRandomUniformFullIntV2 StatelessRandomUniformV2 StatelessWhile Sum
    TensorListFromTensor TensorListGetItem TensorListReserve TensorListSetItem
    TensorListStack While ZerosLike
"""
TO_TEXT = "ReduceJoin StringLength Substr UnicodeTranscode"
# Of softmax attention, which writes into its cache.
CACHE = "XlaDynamicUpdateSlice"

CLIENT = """
import json, sys
sys.modules["keras_rfa"] = sys.modules["keras"] = None
import tensorflow as tf
served = tf.saved_model.load(sys.argv[1]).signatures
texts, ids = json.loads(sys.argv[2])
written = served["serving_default"](text=tf.constant(texts))["text"]
answer = served["prefill"](
    token_ids=tf.constant([ids]), lengths=tf.constant([len(ids)]))
logits = [answer.pop("logits").numpy().tolist()]
answer = served["step"](token_ids=tf.constant([[1]]), **answer)
logits += [answer["logits"].numpy().tolist()]
print("ANSWERS", json.dumps([
    [text.decode() for text in written.numpy()], logits]))
"""


def make_language_model(
    vocabulary_size=257, attention="rfa_gated", num_layers=1, **options
):
    model = keras_rfa.models.language_model(
        vocabulary_size,
        num_layers=num_layers,
        hidden_dim=16,
        num_heads=2,
        intermediate_dim=32,
        attention=attention,
        **options,
    )
    return with_quick_noise(model)


def with_quick_noise(model, seed=7):
    """Gives weights that no initializer does, the same on every backend.

    The embeddings, of which the logits are made too, are small: others repeat
    the last token for ever.
    """
    random = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        scale = 0.3 if weight.name == "embeddings" else 1.0
        values = random.normal(scale=scale, size=weight.shape)
        weight.assign(values + (weight.name == "gamma"))
    return model


def load(path):
    return tf.saved_model.load(str(path)).signatures


def prefill(served, ids, lengths):
    """Returns logits and state."""
    ids = tf.constant(np.asarray(ids, "int32"))
    lengths = tf.constant(np.asarray(lengths, "int32"))
    return split(served["prefill"](token_ids=ids, lengths=lengths))


def step(served, ids, state):
    """Returns logits and state."""
    ids = tf.constant(np.asarray(ids, "int32"))
    return split(served["step"](token_ids=ids, **state))


def split(answer):
    state = dict(answer)
    return state.pop("logits").numpy(), state


def texts_of(served, texts, output="text"):
    answer = served["serving_default"](text=tf.constant(texts, tf.string))
    return [text.decode() for text in answer[output].numpy()]


def ask_elsewhere(path, texts, ids):
    """Returns texts and logits from where Keras and this can't be imported."""
    printed = run_python(
        "-c",
        CLIENT,
        path,
        json.dumps([texts, [int(i) for i in ids]]),
        directory=path.parent,
        CUDA_VISIBLE_DEVICES="-1",
    ).stdout
    (line,) = [x for x in printed.splitlines() if x.startswith("ANSWERS ")]
    return json.loads(line.removeprefix("ANSWERS "))


def continued(logits_of, row, max_length, stops=(), known=None):
    """Returns tokens as a loop that reads the whole for each one chooses them.

    Args:
        logits_of: function from ids `(1, 64)` to logits `(1, 64, v)`.
        row: list of ints, what stands first.
        max_length: int.
        stops: tokens that end the row, which is returned without.
        known: int. Tokens from there on are not chosen, but stops.
    """
    row = list(row)
    while len(row) < max_length:
        ids = np.zeros((1, 64), "int32")
        ids[0, : len(row)] = row
        logits = np.asarray(logits_of(ids))[0, len(row) - 1].copy()
        for token in range(len(logits)):
            if not 0 < token < (known or len(logits)) and token not in stops:
                logits[token] = -np.inf
        if logits.argmax() in stops:
            break
        row.append(int(logits.argmax()))
    return row
