"""What the example of language models shows: tables and pictures."""

import pathlib
from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

COLOURS = (
    "#1f5fa8",
    "#c8781e",
    "#3a8a4d",
    "#8a4fa3",
    "#b03a48",
    "#5f5f5f",
    "#1f9aa8",
)
MEASURES = ("segments", "stretches", "works")


def print_table(results: Sequence[dict[str, Any]], length: int) -> None:
    """Prints how well each model predicts the test works."""
    segments = f"{results[0]['test']['reach']} segments"
    print(f"  test works, read {length:,} tokens at a time:")
    print(
        f"  {'bits a byte (perplexity)':<26}{'from nothing':>18}"
        f"{segments:>18}{'whole works':>18}{'tokens a second':>18}"
    )
    for result in results:
        cells = ""
        for measure in MEASURES:
            values = result["test"][measure]
            cell = "-"
            if values is not None:
                cell = (
                    f"{values['bits_per_byte']:.3f} "
                    f"({values['perplexity']:.2f})"
                )
            cells += f"{cell:>18}"
        print(
            f"  {result['name']:<26}{cells}"
            f"{result['tokens_per_second']:>18,.0f}"
        )
    print(
        f'  "from nothing": each segment alone. "{segments}" and "whole '
        'works": the state carries over them.'
    )


def plot_training(
    path: pathlib.Path, results: Sequence[dict[str, Any]]
) -> None:
    """Draws the losses of training and validation over the steps."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for result, colour in _coloured(results):
        steps = [point["step"] for point in result["points"]]
        for axes, part in ((left, "train"), (right, "validation")):
            nats = [point[f"{part}_nats"] for point in result["points"]]
            axes.plot(steps, nats, label=result["name"], color=colour)
    for axes, part in ((left, "training"), (right, "validation")):
        axes.set(xlabel="step", title=part, xlim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        _finish(axes)
    left.set_ylabel("nats a token")
    right.legend(frameon=False)
    figure.savefig(path, dpi=150)


def plot_positions(
    path: pathlib.Path, results: Sequence[dict[str, Any]], length: int
) -> None:
    """Draws the loss over the position, a line for each model."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    # What is said of the first few tokens would hide all differences.
    shown = []
    for result, colour in _coloured(results):
        points = [
            point
            for point in result["test"]["by_position"]
            if point["last"] >= length // 8
        ]
        middles = [(p["first"] * p["last"]) ** 0.5 for p in points]
        bits = [point["bits_per_byte"] for point in points]
        axes.errorbar(
            middles,
            bits,
            [point["standard_error"] for point in points],
            label=result["name"],
            color=colour,
            marker=".",
            capsize=2,
            linewidth=1.2,
        )
        shown += bits
    axes.axvline(length, color="black", linewidth=0.8, linestyle=":")
    axes.annotate(
        " length of training",
        (length, 1),
        xycoords=("data", "axes fraction"),
        verticalalignment="top",
        fontsize="small",
    )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.set(
        xlabel="position since the state was empty",
        ylabel="bits a byte ± standard error",
    )
    if shown:
        lowest = min(shown)
        axes.set_ylim(0.95 * lowest, min(1.05 * max(shown), 2 * lowest))
    _finish(axes)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def _coloured(results: Sequence[dict[str, Any]]) -> Any:
    return [
        (result, COLOURS[i % len(COLOURS)]) for i, result in enumerate(results)
    ]


def _finish(axes: Any) -> None:
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
