"""A user's own language model, and generating without a state."""

import keras
import numpy as np
from keras import ops

from keras_rfa import layers


class OwnModel(keras.Model):
    """Gated attention, with the methods that `generate` calls."""

    def __init__(self, vocabulary_size=23, width=16, num_layers=1, **kwargs):
        super().__init__(**kwargs)
        self.embedding = keras.layers.Embedding(vocabulary_size, width)
        self.blocks = [
            layers.TransformerDecoder(
                layers.GatedRandomFeatureAttention(2, 8, num_features=8),
                width,
                name=f"block_{i}",
            )
            for i in range(num_layers)
        ]
        self.logits = keras.layers.Dense(vocabulary_size, dtype="float32")
        # How often Python ran `call_with_state`: a compiled one does not.
        self.calls = 0

    def call(self, token_ids):
        x, mask = self.embedding(token_ids), ops.not_equal(token_ids, 0)
        for block in self.blocks:
            x = block(x, mask=mask)
        return self.logits(x)

    def get_initial_state(self, batch_size, max_length=None):
        return {
            block.name: _of_rows(block.get_initial_state(batch_size))
            for block in self.blocks
        }

    def call_with_state(self, token_ids, state, training=False):
        self.calls += 1
        x, mask = self.embedding(token_ids), ops.not_equal(token_ids, 0)
        after = {}
        for block in self.blocks:
            x, last = block(
                x,
                mask=mask,
                training=training,
                initial_state=state[block.name],
                return_state=True,
            )
            after[block.name] = _of_rows(last)
        return self.logits(x), after


def built(**options):
    """Returns a model that gives varied sequences, on any backend the same."""
    model = OwnModel(**options)
    model(keras.Input((None,), dtype="int32"))
    return varied(model, seed=8, embeddings=0.1)


def varied(model, seed, embeddings=0.5):
    """Gives a model weights that are large enough for varied sequences."""
    random = np.random.default_rng(seed)
    weights = []
    for weight in model.weights:
        values = random.normal(size=weight.shape)
        if weight.name in ("beta", "bias"):
            values *= 0
        elif weight.name == "gamma":
            values = np.ones(weight.shape)
        elif weight.name == "embeddings":
            values *= embeddings
        if "forget_gate/bias" in weight.path:
            values = values + 2
        elif "dense/kernel" in weight.path:
            values *= 0.1  # so that samples differ from the greedy choice
        weights.append(values)
    model.set_weights(weights)
    return model


def _of_rows(state):
    """Leaves out which random matrices there were: always the same."""
    sums = state["self"].items()
    return {"self": {key: x for key, x in sums if key != "indices"}}


def whole_logits(model, rows):
    """Returns float64 logits `(v,)` after each row, read as a whole.

    Padding after it is later, and one shape is compiled once.
    """
    ids = np.zeros((len(rows), 64), "int32")
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    logits = model.predict_on_batch(ids).astype("float64")
    return [logits[i, len(row) - 1] for i, row in enumerate(rows)]


def continued(model, row, max_length, stops=()):
    """Returns a row continued greedily, read anew for each token."""
    row = [int(token) for token in row]
    prompt = len(row)
    while len(row) < max_length and not (
        len(row) > prompt and row[-1] in stops
    ):
        (logits,) = whole_logits(model, [row])
        row.append(1 + int(np.argmax(logits[1:])))
    return row


def padded(rows):
    """Returns rows as an int array with zeros at the end."""
    ids = np.zeros((len(rows), max(map(len, rows))), "int32")
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    return ids
