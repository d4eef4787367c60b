"""Training a translator: batches of pairs, what is minimised, and files."""

import argparse
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from progress import DocumentCount, Progress

from keras_rfa.callbacks import BackupAndResume
from keras_rfa.export import export_translator
from keras_rfa.text import SentencePieceTokenizer

Array = np.ndarray
SHORTEST = 16  # tokens; the other lengths of batches are its doubles


@keras.saving.register_keras_serializable(package="examples")
class SmoothCrossEntropy(keras.losses.Loss):
    """Cross entropy of logits with labels of which all pieces have a share.

    The mean is one of weights: padding has none.

    Args:
        smoothing: float, the share.
        **kwargs: Keras' own arguments.
    """

    def __init__(self, smoothing: float = 0.0, **kwargs: Any) -> None:
        kwargs.setdefault("reduction", "mean_with_sample_weight")
        super().__init__(**kwargs)
        self.smoothing = smoothing

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns the loss of each token."""
        exact = ops.sparse_categorical_crossentropy(
            y_true, y_pred, from_logits=True
        )
        if not self.smoothing:
            return exact
        even = ops.logsumexp(y_pred, axis=-1) - ops.mean(y_pred, axis=-1)
        return (1 - self.smoothing) * exact + self.smoothing * even

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return super().get_config() | {"smoothing": self.smoothing}


class _TokenMean(keras.metrics.Mean):
    """A mean over tokens, where Keras' own weigh rows of any length alike."""

    def add(self, values: Any, sample_weight: Any) -> None:
        """Adds a value `(b, t)` for each token."""
        if sample_weight is not None:
            sample_weight = ops.reshape(sample_weight, (-1,))
        keras.metrics.Mean.update_state(
            self, ops.reshape(values, (-1,)), sample_weight
        )


@keras.saving.register_keras_serializable(package="examples")
class TokenCrossEntropy(_TokenMean):
    """The cross entropy of logits with labels."""

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        """Adds the tokens of a batch."""
        values = ops.sparse_categorical_crossentropy(
            y_true, y_pred, from_logits=True
        )
        self.add(values, sample_weight)


@keras.saving.register_keras_serializable(package="examples")
class TokenAccuracy(_TokenMean):
    """The share of tokens that are the most probable ones."""

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        """Adds the tokens of a batch."""
        hits = ops.equal(ops.argmax(y_pred, axis=-1), ops.cast(y_true, "int32"))
        self.add(ops.cast(hits, "float32"), sample_weight)


def boundaries(max_length: int) -> list[int]:
    """Returns the lengths that batches have."""
    lengths = []
    length = SHORTEST
    while length < max_length:
        lengths.append(length)
        length *= 2
    return [*lengths, max_length]


class PairBatches:
    """Batches of pairs of like length, in few shapes that never change.

    Both sides are padded to the first of few lengths that neither exceeds.
    Pairs of weight 0 complete the last batch of a length.

    Args:
        sources: list of int arrays, each with its end.
        targets: list of int arrays, each with start and end.
        max_length: int. The longest source, and target without its start.
        tokens_per_batch: int. Tokens of a side, with padding.
        seed: int. The order depends on it and on the number of the epoch.
            `None` keeps one order.
    """

    def __init__(
        self,
        sources: Sequence[Array],
        targets: Sequence[Array],
        max_length: int,
        tokens_per_batch: int,
        seed: int | None = None,
    ) -> None:
        self.sources, self.targets = sources, targets
        self.tokens_per_batch, self.seed = tokens_per_batch, seed
        with tf.device("CPU"):
            self.epoch = tf.Variable(0, dtype=tf.int64)
        lengths = [
            max(len(source), len(target) - 1)
            for source, target in zip(sources, targets, strict=True)
        ]
        buckets = np.searchsorted(boundaries(max_length), lengths)
        self.members = {
            length: np.flatnonzero(buckets == i)
            for i, length in enumerate(boundaries(max_length))
        }
        self.tokens = sum(len(target) - 1 for target in targets)

    def __len__(self) -> int:
        return sum(
            -(-len(numbers) // self._rows(length))
            for length, numbers in self.members.items()
        )

    def __iter__(self) -> Iterator[Any]:
        """Yields inputs, labels and weights of each batch of an epoch."""
        order = None
        if self.seed is not None:
            order = np.random.default_rng([self.seed, int(self.epoch)])
        parts = []
        for length, numbers in self.members.items():
            if order is not None:
                numbers = order.permutation(numbers)
            cuts = range(0, len(numbers), self._rows(length))
            parts += [
                (length, numbers[i : i + self._rows(length)]) for i in cuts
            ]
        if order is not None:
            order.shuffle(parts)
        for length, numbers in parts:
            yield self._batch(length, numbers)

    def dataset(self) -> Any:
        """Returns a `tf.data.Dataset` that Keras can read again and again."""
        ids = tf.TensorSpec((None, None), tf.int32)
        spec = {"source": ids, "target": ids}, ids
        weights = tf.TensorSpec((None, None), tf.float32)
        dataset = tf.data.Dataset.from_generator(
            lambda: iter(self), output_signature=(*spec, weights)
        )
        counted = tf.data.experimental.assert_cardinality(len(self))
        return dataset.apply(counted).prefetch(2)

    def _rows(self, length: int) -> int:
        return max(1, self.tokens_per_batch // length)

    def _batch(self, length: int, numbers: Array) -> Any:
        rows = self._rows(length)
        chosen = np.resize(numbers, rows)
        source = padded([self.sources[i] for i in chosen], length)
        target = padded([self.targets[i][:-1] for i in chosen], length)
        labels = padded([self.targets[i][1:] for i in chosen], length)
        weights = (labels != 0).astype("float32")
        weights[len(numbers) :] = 0
        return {"source": source, "target": target}, labels, weights


def padded(rows: Sequence[Array], length: int) -> Array:
    """Returns ids `(n, length)`, with zeros behind those of a row."""
    ids = np.zeros((len(rows), length), "int32")
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    return ids


def fit(
    model: keras.Model,
    train: PairBatches,
    validation: PairBatches,
    progress: Progress,
    options: argparse.Namespace,
) -> None:
    """Trains, and leaves the weights of the best epoch in the model."""
    steps = options.epochs * len(train)
    warmup_steps = max(1, min(1000, steps // 10))
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0,
        max(1, steps - warmup_steps),
        warmup_target=options.learning_rate,
        warmup_steps=warmup_steps,
    )
    model.compile(
        keras.optimizers.AdamW(
            schedule,
            weight_decay=options.weight_decay,
            beta_2=0.98,
            global_clipnorm=1.0,
        ),
        SmoothCrossEntropy(options.label_smoothing),
        weighted_metrics=[
            TokenCrossEntropy(name="cross_entropy"),
            TokenAccuracy(name="accuracy"),
            DocumentCount(name="documents"),
        ],
    )
    keep_best = keras.callbacks.EarlyStopping(
        "val_cross_entropy",
        mode="min",
        patience=options.epochs,
        restore_best_weights=True,
    )
    callbacks = [progress, keep_best]
    if options.resume:
        backup = pathlib.Path(f"{pathlib.Path(options.output_dir)}.backup")
        count = BackupAndResume(backup, epoch=train.epoch, callbacks=callbacks)
    else:
        count = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda number, logs: train.epoch.assign(number)
        )
    model.fit(
        train.dataset(),
        validation_data=validation.dataset(),
        epochs=options.epochs,
        callbacks=[*callbacks, count],
        shuffle=False,  # the batches come shuffled
        verbose=1 if progress.interactive else 0,
    )


def save(model: keras.Model, path: pathlib.Path) -> None:
    """Writes a model without optimizer, loss and metrics."""
    model.save(path)
    keras.models.load_model(path, compile=False).save(path)


def export(
    model: keras.Model,
    tokenizer: SentencePieceTokenizer,
    path: pathlib.Path,
    options: argparse.Namespace,
) -> None:
    """Writes a SavedModel that cuts sources, and ends, as training did."""
    cut = SentencePieceTokenizer(
        tokenizer.model, options.max_length, add_end=True
    )
    export_translator(
        model,
        path,
        source_tokenizer=cut,
        target_tokenizer=tokenizer,
        max_length=2 * options.max_length,
    )
