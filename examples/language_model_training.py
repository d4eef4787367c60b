"""Language models that are trained alike, whatever their attention."""

import argparse
import pathlib
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import keras
import numpy as np
from plain_texts import PARTS, Work, Works, encode

import keras_rfa
from keras_rfa.callbacks import BackupAndResume, ResetStates
from keras_rfa.text import TokenRows

POINTS = 20  # of the curves of training


class Run(NamedTuple):
    """One of the trainings that are compared."""

    attention: str
    stateful: bool = False

    @property
    def name(self) -> str:
        """What names it in tables and files."""
        return f"{self.attention}_stateful" if self.stateful else self.attention


class Tokens(NamedTuple):
    """The ids of the works of each part, and how many bytes they stand for."""

    train: list[np.ndarray]
    validation: list[np.ndarray]
    test: list[np.ndarray]
    vocabulary_size: int
    bytes_per_token: float


def tokenize(tokenizer: Any, works: Works) -> Tokens:
    """Returns the ids of all works; the bytes are those of the test works."""

    def read(part: Iterable[Work]) -> list[np.ndarray]:
        rows = [tokenizer([work.text]).numpy()[0] for work in part]
        return [row[row > 0] for row in rows]

    parts = [read(getattr(works, part)) for part in PARTS]
    size = sum(len(encode(work.text)) for work in works.test)
    count = sum(map(len, parts[-1]))
    return Tokens(*parts, tokenizer.vocabulary_size, size / max(1, count))


def build(
    options: argparse.Namespace,
    run: Run,
    vocabulary_size: int,
    carries: bool = False,
) -> keras.Model:
    """Returns an untrained model.

    Args:
        options: those of the command line.
        run: Run.
        vocabulary_size: int.
        carries: bool. Whether it carries its state from batch to batch.
    """
    attention_options = {}
    if run.attention.startswith(("rfa", "performer")):
        attention_options["num_features"] = options.features
    return keras_rfa.models.language_model(
        vocabulary_size,
        num_layers=options.layers,
        hidden_dim=options.width,
        num_heads=options.heads,
        intermediate_dim=4 * options.width,
        attention=run.attention,
        attention_options=attention_options,
        dropout=options.dropout,
        convolution=options.convolution,
        positions=options.positions,
        stateful=carries,
        batch_size=options.batch_size if carries else None,
        name="language_model",
    )


class Progress(keras.callbacks.Callback):
    """Keeps the curves of training, and prints a line for each of its points.

    Args:
        epoch: variable, set to the number of the epoch before it is read.
        tokens: int. Tokens of an epoch.
        interactive: bool. Whether Keras shows a progress bar instead.
    """

    def __init__(self, epoch: Any, tokens: int, interactive: bool) -> None:
        super().__init__()
        self.epoch = epoch
        self.tokens = tokens
        self.interactive = interactive
        self.points: list[dict[str, float]] = []
        # Of all epochs, also those of a run that this one goes on from.
        self.seconds = 0.0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts the clock."""
        self.epoch.assign(epoch)
        self.begin = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds a point to the curves."""
        seconds = time.perf_counter() - self.begin
        self.seconds += seconds
        epochs = self.params["epochs"]
        point = {
            "step": (epoch + 1) * self.params["steps"],
            "train_nats": float(logs["nats"]),
            "validation_nats": float(logs["val_nats"]),
            "tokens_per_second": self.tokens / seconds,
        }
        self.points.append(point)
        if not self.interactive:
            left = self.seconds / (epoch + 1) * (epochs - epoch - 1)
            print(
                f"  step {point['step']:,} of "
                f"{epochs * self.params['steps']:,}: "
                f"{point['train_nats']:.3f} nats a token, validation "
                f"{point['validation_nats']:.3f}, "
                f"{point['tokens_per_second']:,.0f} tokens a second, "
                f"{left:,.0f} s left",
                flush=True,
            )


def train(
    options: argparse.Namespace,
    run: Run,
    tokens: Tokens,
    interactive: bool = False,
    backup: pathlib.Path | None = None,
) -> tuple[keras.Model, Progress]:
    """Trains a model, with the same number of steps whatever its attention.

    Args:
        options: those of the command line.
        run: Run.
        tokens: Tokens.
        interactive: bool. Whether to show progress bars.
        backup: path of a file to resume from, which stays.

    Returns:
        The model, which carries no state by itself, and the curves.
    """
    keras.utils.set_random_seed(options.seed)
    epochs = min(POINTS, options.steps)
    steps = options.steps // epochs
    epoch = keras.Variable(0, dtype="int32", trainable=False)
    batches = TokenRows(
        tokens.train,
        options.batch_size,
        options.length,
        shuffle=not run.stateful,
        seed=options.seed,
        epoch=epoch,
        batches_per_epoch=steps,
    )
    model = build(options, run, tokens.vocabulary_size, run.stateful)
    compile_model(options, model, epochs * steps)
    progress = Progress(
        epoch, steps * options.batch_size * options.length, interactive
    )
    callbacks: list[keras.callbacks.Callback] = [progress]
    if run.stateful:
        callbacks.append(ResetStates())
    if backup is not None:
        callbacks.append(
            BackupAndResume(
                backup,
                epoch=epoch,
                callbacks=[progress],
                delete_checkpoint=False,
            )
        )
    model.fit(
        batches,
        epochs=epochs,
        shuffle=False,
        validation_data=validation_batches(options, tokens, steps),
        callbacks=callbacks,
        verbose=1 if interactive else 0,
    )
    return without_state(options, run, tokens, model), progress


def validation_batches(
    options: argparse.Namespace, tokens: Tokens, steps: int
) -> TokenRows:
    """Returns the middles of the works to validate on.

    They are short enough to take little time beside the steps of an epoch.
    Beginnings are other text: names of persons, prefaces.
    """
    count = max(1, steps // 8) * options.batch_size * options.length
    share = count // len(tokens.validation) + 1
    middles = []
    for ids in tokens.validation:
        begin = max(0, len(ids) - share) // 2
        middles.append(ids[begin : begin + share])
    return TokenRows(middles, options.batch_size, options.length)


def compile_model(
    options: argparse.Namespace, model: keras.Model, steps: int
) -> None:
    """Compiles a model with a warm-up and a cosine."""
    warmup_steps = max(1, steps // 20)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0,
        max(1, steps - warmup_steps),
        warmup_target=options.learning_rate,
        warmup_steps=warmup_steps,
    )
    model.compile(
        keras.optimizers.AdamW(
            schedule, weight_decay=0.01, global_clipnorm=1.0
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        # Weighted, so that padding does not count.
        weighted_metrics=[
            keras.metrics.SparseCategoricalCrossentropy(
                name="nats", from_logits=True
            )
        ],
        jit_compile="auto" if keras.backend.backend() == "torch" else True,
    )


def without_state(
    options: argparse.Namespace,
    run: Run,
    tokens: Tokens,
    model: keras.Model,
) -> keras.Model:
    """Returns a model of the same weights, without optimizer or own state."""
    copy = build(options, run, tokens.vocabulary_size)
    carried = []
    if run.stateful:
        carried = model.training_state.weights + model.inference_state.weights
    copy.set_weights(
        [
            keras.ops.convert_to_numpy(weight)
            for weight in model.weights
            if not any(weight is other for other in carried)
        ]
    )
    return copy
