"""How far the training is, and what it takes."""

import math
import pathlib
import re
import sys
import time
from typing import Any

import keras

START = time.perf_counter()
MEASURES = ("cross_entropy", "accuracy")


@keras.saving.register_keras_serializable(package="examples")
class DocumentCount(keras.metrics.Sum):
    """Counts the documents of an epoch: rows of padding weigh nothing."""

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None
    ) -> None:
        """Adds the documents of a batch."""
        super().update_state(sample_weight)


class Progress(keras.callbacks.Callback):
    """Keeps the curves of training and, where asked to, prints them.

    Keras reports averages since the beginning of the epoch. These are of the
    documents since the last point, of which there are about twenty in all.
    Among the weighted metrics must be `cross_entropy`, `accuracy` and a
    `DocumentCount` named `documents`.

    Args:
        tokens: int. Tokens of an epoch.
        interactive: bool. Whether Keras shows a progress bar. If not, a line
            is printed at each point.
    """

    def __init__(self, tokens: int, interactive: bool) -> None:
        super().__init__()
        self.tokens = tokens
        self.interactive = interactive
        self.train: list[dict[str, float]] = []
        self.validation: list[dict[str, float]] = []
        # Of all epochs, also those of a run that this one goes on from.
        self.seconds = 0.0

    @property
    def tokens_per_second(self) -> float:
        """The tokens of all epochs by the seconds, validation included."""
        return self.tokens * len(self.validation) / self.seconds

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts new averages."""
        self.epoch = epoch
        self.steps, self.epochs = self.params["steps"], self.params["epochs"]
        self.every = math.ceil(self.steps * self.epochs / 20)
        self.last = dict.fromkeys(("step", "documents", *MEASURES), 0)
        self.time = self.begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Adds a point of the curves."""
        done = batch + 1
        if done % self.every and done != self.steps:
            return
        totals = {"step": done, "documents": logs["documents"]}
        for name in MEASURES:
            totals[name] = logs[name] * totals["documents"]
        new = {name: totals[name] - self.last[name] for name in totals}
        now = time.perf_counter()
        seconds = (now - self.time) / new["step"]
        self.last, self.time = totals, now
        point = {
            "step": self.epoch * self.steps + done,
            "cross_entropy": new["cross_entropy"] / new["documents"],
            "accuracy": new["accuracy"] / new["documents"],
            "tokens_per_second": self.tokens / self.steps / seconds,
        }
        self.train.append(point)
        if not self.interactive:
            steps = self.steps * self.epochs
            print(
                f"  step {point['step']:,} of {steps:,}: "
                f"cross entropy {point['cross_entropy']:.3f}, "
                f"accuracy {point['accuracy']:.3f}, "
                f"{point['tokens_per_second']:,.0f} tokens a second, "
                f"{seconds * (steps - point['step']):,.0f} s left",
                flush=True,
            )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds a point of the validation curves."""
        point = {"step": (epoch + 1) * self.steps}
        point.update({name: logs[f"val_{name}"] for name in MEASURES})
        self.validation.append(point)
        self.seconds += time.perf_counter() - self.begin
        if not self.interactive:
            print(
                f"  epoch {epoch + 1} of {self.epochs}, validation: "
                f"cross entropy {point['cross_entropy']:.3f}, "
                f"accuracy {point['accuracy']:.3f}",
                flush=True,
            )


def announce(message: str) -> None:
    """Prints a line with the seconds since the start of the program."""
    print(f"[{time.perf_counter() - START:3.0f} s] {message}", flush=True)


def trainable_parameters(model: keras.Model) -> int:
    """Counts what is learned; the matrices of the pools are not."""
    return sum(math.prod(weight.shape) for weight in model.trainable_weights)


def peak_memory() -> float | None:
    """Returns the most memory this process has had, in MiB, where known."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        peak = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.M)
        if peak:
            return int(peak[1]) / 1024
    try:
        import resource
    except ImportError:
        return None
    peak_size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_size / (1024**2 if sys.platform == "darwin" else 1024)
