"""What the examples show: progress, a floor, accuracy by length, pictures."""

import math
import pathlib
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from documents import Documents
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

MEASURES = ("cross_entropy", "accuracy")
COLOURS = {"model": "#1f5fa8", "floor": "#c8781e"}


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
        steps: int. Steps of an epoch.
        epochs: int. Number of epochs.
        tokens: int. Tokens of an epoch.
        interactive: bool. Whether Keras shows a progress bar. If not, a line
            is printed at each point.
    """

    def __init__(
        self, steps: int, epochs: int, tokens: int, interactive: bool
    ) -> None:
        super().__init__()
        self.steps, self.epochs, self.tokens = steps, epochs, tokens
        self.interactive = interactive
        self.every = math.ceil(steps * epochs / 20)
        self.train: list[dict[str, float]] = []
        self.validation: list[dict[str, float]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts the clock."""
        self.start = time.perf_counter()

    def on_train_end(self, logs: Any = None) -> None:
        """Stops the clock."""
        self.seconds = time.perf_counter() - self.start
        self.tokens_per_second = self.tokens * self.epochs / self.seconds

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Starts new averages."""
        self.epoch = epoch
        self.last = dict.fromkeys(("step", "documents", *MEASURES), 0)
        self.time = time.perf_counter()

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
        if not self.interactive:
            print(
                f"  epoch {epoch + 1} of {self.epochs}, validation: "
                f"cross entropy {point['cross_entropy']:.3f}, "
                f"accuracy {point['accuracy']:.3f}",
                flush=True,
            )


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


def predict_from_words(train: Documents, texts: Sequence[str]) -> np.ndarray:
    """Returns the classes that the words alone suggest, whatever their order.

    A model that reads documents should do better than this, or read longer
    ones, or be smaller. It sees the whole texts.
    """
    words = TfidfVectorizer(token_pattern=r"\w+|[^\w\s]")
    floor = make_pipeline(words, LogisticRegression(max_iter=1000))
    return floor.fit(*train).predict(texts)


def accuracy_by_length(
    texts: Sequence[str], labels: Any, **predicted: Any
) -> list[dict[str, Any]]:
    """Counts right answers among documents of like length.

    Lengths double from one group to the next. The first and the last group
    take in what is beyond them, so that each has about 2 % of the documents.

    Args:
        texts: the documents.
        labels: their classes, `(n,)`.
        **predicted: the classes that each of several models gave, `(n,)`.

    Returns:
        A list of dicts, from short documents to long ones, the last of all
        documents: a `name`, the number of `documents`, and the accuracy of
        each model.
    """
    lengths = [len(text.encode("utf-8", "replace")) for text in texts]
    doublings = np.floor(np.log2(lengths))
    first, last = np.quantile(doublings, [0.02, 0.98], method="nearest")
    groups = np.clip(doublings, first, last)
    members = {"all": groups >= first}
    for group in np.unique(groups)[::-1] if first < last else []:
        low, high = _size(2**group), _size(2 ** (group + 1))
        name = f"{low} to {high}"
        if group == first:
            name = f"below {high}"
        elif group == last:
            name = f"from {low}"
        members[name] = groups == group
    rows = []
    for name, inside in reversed(members.items()):
        rows.append({"name": name, "documents": int(inside.sum())})
        for model, answers in predicted.items():
            right = np.asarray(answers)[inside] == np.asarray(labels)[inside]
            rows[-1][model] = float(right.mean())
    return rows


def in_words(counts: dict[str, int]) -> str:
    """Returns such as "12 empty, 3 repeated"."""
    return ", ".join(f"{n:,} {name}" for name, n in counts.items())


def print_accuracy(rows: Sequence[dict[str, Any]]) -> None:
    """Prints what `accuracy_by_length` returns."""
    print("  test accuracy by length   documents   model   bag of words")
    for row in rows:
        print(
            f"  {row['name']:<24} {row['documents']:>10,}   "
            f"{row['model']:.3f}   {row['floor']:.3f}"
        )


def print_answers(texts: Sequence[str], answers: dict[str, Any]) -> None:
    """Prints what the SavedModel says of texts."""
    for text, label, probabilities in zip(
        texts,
        answers["label"].numpy(),
        answers["probabilities"].numpy(),
        strict=True,
    ):
        print(
            f"  {' '.join(text.split())[:60]!r}... is {label.decode()} with "
            f"probability {probabilities.max():.2f}"
        )


def _size(length: float) -> str:
    if length < 1024:
        return f"{length:.0f} B"
    if length < 1024**2:
        return f"{length / 1024:.0f} KiB"
    return f"{length / 1024**2:.0f} MiB"


def plot_training(path: pathlib.Path, progress: Progress) -> None:
    """Draws cross entropy and accuracy over the steps of training."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), MEASURES, strict=True):
        for points, label, style in (
            (progress.train, "training", {"color": COLOURS["model"]}),
            (
                progress.validation,
                "validation",
                {"color": COLOURS["floor"], "marker": "o", "linestyle": "--"},
            ),
        ):
            steps = [point["step"] for point in points]
            axes.plot(steps, [p[name] for p in points], label=label, **style)
        axes.set(xlabel="step", ylabel=name.replace("_", " "), xlim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        if name == "accuracy":
            axes.yaxis.set_major_formatter(PercentFormatter(1))
    figure.savefig(path, dpi=150)


def plot_accuracy_by_length(
    path: pathlib.Path, rows: Sequence[dict[str, Any]], **labels: str
) -> None:
    """Draws accuracy over the length of documents, a line for each model."""
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.subplots()
    rows = rows[:-1] or rows  # without that of all documents
    counts = np.array([row["documents"] for row in rows])
    shifts = np.linspace(-0.06, 0.06, len(labels))
    for shift, (name, label) in zip(shifts, labels.items(), strict=True):
        accuracy = np.array([row[name] for row in rows])
        # As if one more document were right and one wrong: no bar is 0.
        share = (accuracy * counts + 1) / (counts + 2)
        error = np.sqrt(share * (1 - share) / counts)
        axes.errorbar(
            np.arange(len(rows)) + shift,
            accuracy,
            error,
            label=label,
            color=COLOURS[name],
            marker="o",
            capsize=4,
        )
    axes.set_xticks(
        range(len(rows)),
        [f"{row['name']}\n{row['documents']:,}" for row in rows],
    )
    axes.set(
        xlabel="length of a document, and number of test documents",
        ylabel="test accuracy ± standard error",
        xlim=(-0.5, len(rows) - 0.5),
    )
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    figure.savefig(path, dpi=150)
