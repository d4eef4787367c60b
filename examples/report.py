"""What the examples show: a floor, measures of the answers, pictures."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from documents import Documents
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from progress import MEASURES, Progress
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

COLOURS = {"model": "#1f5fa8", "floor": "#c8781e", "floor_read": "#8a8a8a"}


def predict_from_words(train: Documents, texts: Sequence[str]) -> np.ndarray:
    """Returns the classes that the words alone suggest, whatever their order.

    A model that reads documents should do better than this, or read longer
    ones, or be smaller.
    """
    words = TfidfVectorizer(
        token_pattern=r"[^\W_]+|[^\w\s]|_", sublinear_tf=True
    )
    floor = make_pipeline(words, LogisticRegression(C=10, max_iter=1000))
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


def print_confusion(matrix: np.ndarray, class_names: Sequence[str]) -> None:
    """Prints how often each class was taken for each, if they are few."""
    if len(class_names) > 12:
        return
    names = [
        name if len(name) <= 12 else f"{name[:11]}…" for name in class_names
    ]
    print("  confusion matrix: the true class down, the answer across")
    width = max(6, *map(len, names)) + 2
    print("  " + " " * width + "".join(f"{name:>{width}}" for name in names))
    for name, row in zip(names, matrix, strict=True):
        counts = "".join(f"{count:>{width},}" for count in row)
        print(f"  {name:<{width}}{counts}")


def in_words(counts: dict[str, int]) -> str:
    """Returns such as "12 empty, 3 repeated"."""
    return ", ".join(f"{n:,} {name}" for name, n in counts.items())


def print_accuracy(rows: Sequence[dict[str, Any]]) -> None:
    """Prints what `accuracy_by_length` returns."""
    heads = {
        "model": "model",
        "floor": "bag of words",
        "floor_read": "of the same tokens",
    }
    shown = [name for name in heads if name in rows[0]]
    titles = "   ".join(heads[name] for name in shown)
    print(f"  test accuracy by length   documents   {titles}")
    for row in rows:
        values = [f"{row[name]:<{len(heads[name])}.3f}" for name in shown]
        print(
            f"  {row['name']:<24} {row['documents']:>10,}   "
            f"{'   '.join(values)}".rstrip()
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


def plot_confusion(
    path: pathlib.Path, matrix: np.ndarray, class_names: Sequence[str]
) -> None:
    """Draws, for each true class, the shares of the answers."""
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    size = min(14.0, 3.2 + 0.55 * len(class_names))
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    ticks = range(len(class_names))
    names = [
        name if len(name) <= 20 else f"{name[:19]}…" for name in class_names
    ]
    axes.set_xticks(
        ticks, names, rotation=45, ha="right", rotation_mode="anchor"
    )
    axes.set_yticks(ticks, names)
    axes.set(xlabel="answer", ylabel="true class")
    if len(class_names) <= 20:
        for (row, column), count in np.ndenumerate(matrix):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(
                column,
                row,
                f"{count:,}",
                ha="center",
                va="center",
                color=colour,
            )
    bar = figure.colorbar(image, format=PercentFormatter(1), shrink=0.8)
    bar.set_label("share of the true class")
    axes.spines[:].set_visible(False)
    figure.savefig(path, dpi=150, bbox_inches="tight")
