"""A training with everything that has a state, and the ways to interrupt it.

    python interrupted_training.py DIRECTORY '{"name": [["batch", 2, 1]]}'

interrupts it at each of the moments under a name, starts it again, and writes
`DIRECTORY/name/end.npz` when it comes to its end.
"""

import json
import os
import pathlib
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import keras_rfa

# What early stopping sees: epoch 1 is the best, and epoch 5 the last.
SCORES = [0.0, 3.0, 1.0, 2.9, 0.0, 1.0, 9.0, 9.0]


class Interrupt(keras.callbacks.Callback):
    """Ends the process, without warning, at a moment of training."""

    def __init__(self, moment, epoch, batch):
        super().__init__()
        self.moment, self.target, self.batch = moment, epoch, batch
        self.epoch = -1

    def is_reached(self, moment):
        return (moment, self.epoch) == (self.moment, self.target)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch and self.is_reached("batch"):
            end()

    def on_test_batch_end(self, batch, logs=None):
        if self.is_reached("validation"):
            end()

    def on_epoch_end(self, epoch, logs=None):
        # The callback of the backup comes next.
        if self.is_reached("writing"):
            os.fsync = lambda descriptor: end()
        if self.is_reached("renaming"):
            os.replace = lambda old, new: end()


def end():
    os.kill(os.getpid(), signal.SIGKILL)


def build_model():
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(20, 8, mask_zero=True)(ids)
    attention = keras_rfa.layers.GatedRandomFeatureAttention(
        2, 4, num_features=4, dropout=0.2
    )
    x = x + attention(x, x, use_causal_mask=True)
    x = keras_rfa.layers.MaskedAveragePooling()(x)
    x = keras.layers.Dropout(0.3)(x)
    model = keras.Model(ids, keras.layers.Dense(2)(x))
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 60)
    model.compile(
        keras.optimizers.AdamW(schedule, weight_decay=0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def read_data(epoch):
    draw = np.random.default_rng(0)
    lengths = draw.integers(1, 13, 40)
    rows = tf.ragged.constant(
        [draw.integers(1, 20, n).tolist() for n in lengths], dtype=tf.int32
    )
    labels = draw.integers(0, 2, 40)
    documents = tf.data.Dataset.from_tensor_slices((rows, labels))
    documents = documents.map(lambda row, label: (row, label))
    return (
        keras_rfa.text.bucket_batches(
            documents.take(30), [6, 12], 48, 30, seed=3, epoch=epoch
        ),
        keras_rfa.text.bucket_batches(documents.skip(30), [12], 120),
    )


def train(path, *callbacks):
    """Returns the model and its history; only data and order have seeds."""
    with tf.device("CPU"):
        epoch = tf.Variable(0, dtype=tf.int64)
    batches, validation = read_data(epoch)
    model = build_model()
    score = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: logs.update(score=SCORES[epoch])
    )
    stopping = keras.callbacks.EarlyStopping(
        "score", 0.5, patience=4, mode="max", restore_best_weights=True
    )
    backup = keras_rfa.callbacks.BackupAndResume(
        path, epoch=epoch, callbacks=[stopping]
    )
    history = model.fit(
        batches,
        epochs=len(SCORES),
        validation_data=validation,
        callbacks=[score, stopping, *callbacks, backup],
        verbose=0,
    )
    return model, history, stopping


def save_end(path, model, history, stopping):
    """Writes all that an unbroken training must give too."""
    variables = [*model.variables, *model.optimizer.variables]
    seen = {"history": history.history, "epoch": history.epoch}
    np.savez(
        path,
        *map(keras.ops.convert_to_numpy, variables),
        seen=json.dumps([seen, stopping.best_epoch, stopping.stopped_epoch]),
    )


def run_in_another_process(directory, interrupt):
    """Returns how it ended, 0 or minus a signal.

    Nothing has been computed before, so that it starts like a new program,
    only without the seconds that the imports take.
    """
    process = os.fork()
    if process == 0:
        keras.utils.set_random_seed(5)
        results = train(directory / "backup", *interrupt)
        save_end(directory / "end.npz", *results)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


if __name__ == "__main__":
    for name, moments in json.loads(sys.argv[2]).items():
        directory = pathlib.Path(sys.argv[1], name)
        directory.mkdir()
        interrupts = [[Interrupt(*moment)] for moment in moments]
        for callbacks in [*interrupts, []]:
            print(run_in_another_process(directory, callbacks), flush=True)
