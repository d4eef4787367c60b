"""Accuracy and speed against the tokens of a document that are read.

    python examples/kernel_documents.py documents/kernel
    python examples/benchmarks/long_documents.py --data-dir documents/kernel

Trains `classify_long_documents.py`, in a process of its own, for each
attention, each `--max-length` and each fold, which is also the seed; after
`--` come further options for it. What is in `--output-dir` already is not done
again: a sweep that was interrupted goes on, and one that is called with more
lengths or folds adds them.

A document is read up to `--max-length`, so that most are shorter: the table
also has the tokens that are read on average. Accuracy is the mean over the
folds. All models are tested on the same documents, so that the mean of the
differences from a bag of words of the same tokens says more than the difference
of the means; both with standard errors, which are somewhat too small, since the
folds share documents to train on. Tokens a second are those of training without
compilation, the median over the run.
"""

import argparse
import json
import math
import operator
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import keras
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

EXAMPLES = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(EXAMPLES))
from options import at_least  # noqa: E402  (they lie with the program)
from options import parse_options as parse_program_options  # noqa: E402

PROGRAM = EXAMPLES / "classify_long_documents.py"
ATTENTIONS = {"rfa": math.inf, "softmax": 4096}
FLOOR = "bag of words"
# What changes no figure.
NOT_COMPARED = {"output_dir", "overwrite", "resume", "words"}
COLOURS = ("#1f5fa8", "#b03a48", "#3c8d5a", "#7b559c")


def main() -> None:
    """Runs what is not there yet, prints a table and draws it."""
    options, runs = parse_options()
    for run in runs:
        check_options(run)
    results: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for number, run in enumerate(runs, 1):
        print(
            f"[{number} of {len(runs)}] {run.attention}, {run.max_length:,} "
            f"tokens, fold {run.fold}",
            flush=True,
        )
        found = train(run)
        print(
            f"  accuracy {found['test_accuracy']:.3f}, {FLOOR} "
            f"{found['bag_of_words_read_test_accuracy']:.3f}, "
            f"{speed(found):,.0f} tokens a second, "
            f"{found['total_seconds']:.0f} s",
            flush=True,
        )
        key = run.attention, run.max_length
        results.setdefault(key, []).append(found)
    rows = summarise(results)
    print_table(rows)
    plot = options.plot or options.output_dir / "long_documents.png"
    draw(rows, plot)
    print(f"\nWrote {plot}")


def parse_options() -> tuple[argparse.Namespace, list[argparse.Namespace]]:
    """Reads the command line, and what the program is to do in each run."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        usage="%(prog)s --data-dir DIR [options] [-- options of the program]",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data-dir", required=True, help="a folder of texts for each class")
    add(
        "--output-dir",
        type=pathlib.Path,
        default=pathlib.Path("runs/long_documents"),
        help="a folder with a folder for each run",
    )
    add(
        "--attentions",
        type=read_attention,
        nargs="+",
        help="their names, with a number only up to so many tokens "
        "(default: rfa softmax=4096)",
    )
    add(
        "--lengths",
        type=at_least(1),
        nargs="+",
        default=[512, 1024, 2048, 4096, 8192, 16384],
        help="tokens of a document that are read",
    )
    add(
        "--folds",
        type=int,
        nargs="+",
        choices=range(10),
        default=[0, 1, 2, 3, 4],
        metavar="FOLD",
        help="tenths of the documents that are the test set, one after another",
    )
    add("--plot", type=pathlib.Path, help="a PNG, elsewhere than with the runs")
    options, further = parser.parse_args(words[:cut]), words[cut + 1 :]
    runs = [
        make_run(options, attention, length, fold, further)
        for fold in sorted({*options.folds})
        for length in sorted({*options.lengths})
        for attention, longest in dict(options.attentions or ATTENTIONS).items()
        if length <= longest
    ]
    if not runs:
        parser.error("none of --attentions reads any of --lengths")
    if runs[0].window is not None:
        parser.error("with --window there is no length to vary")
    return options, runs


def make_run(
    options: argparse.Namespace,
    attention: str,
    length: int,
    fold: int,
    further: list[str],
) -> argparse.Namespace:
    """Returns the options of a run of the program, and its `words`."""
    name = f"{attention.replace(':', '.')}-{length}-{fold}"
    varied = {
        "--data-dir": options.data_dir,
        "--output-dir": options.output_dir / name,
        "--attention": attention,
        "--max-length": length,
        "--fold": fold,
        "--seed": fold,
    }
    # Last, since the last of two equal options counts.
    words = [*further, *(str(x) for pair in varied.items() for x in pair)]
    run = parse_program_options(words)
    run.words = words
    return run


def read_attention(words: str) -> tuple[str, float]:
    """Returns the name of an attention and the most tokens it is to read."""
    name, _, longest = words.partition("=")
    return name, at_least(1)(longest) if longest else math.inf


read_attention.__name__ = "NAME or NAME=TOKENS,"  # as `argparse` calls it


def train(run: argparse.Namespace) -> dict[str, Any]:
    """Runs the program, or reads what it has found before."""
    found = read_results(run)
    if found is None:
        command = [sys.executable, str(PROGRAM), *run.words]
        finished = subprocess.run(
            command,
            env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if finished.returncode:
            sys.exit(f"{finished.stdout}\nThis failed: {shlex.join(command)}")
        found = read_results(run)
    return found


def read_results(run: argparse.Namespace) -> dict[str, Any] | None:
    """Returns what a run has found, `None` where it has not ended."""
    path = pathlib.Path(run.output_dir, "results.json")
    return json.loads(path.read_text()) if path.exists() else None


def check_options(run: argparse.Namespace) -> None:
    """Refuses what is there already, but from other options."""
    found = read_results(run)
    if found is None:
        return
    asked = {**vars(run), "backend": keras.config.backend()}
    there = {**found["options"], "backend": found["backend"]}
    for options in asked, there:
        if options["data_dir"] is None:  # a run of `--csv`
            continue
        options["data_dir"] = os.path.normpath(options["data_dir"])
    different = [
        f"{name}={there.get(name)!r} instead of {asked[name]!r}"
        for name in sorted(asked.keys() - NOT_COMPARED)
        if there.get(name) != asked[name]
    ]
    if different:
        sys.exit(
            f"{run.output_dir!r} holds a run with {', '.join(different)}. "
            "Delete it, or choose another `--output-dir`."
        )


def speed(found: dict[str, Any]) -> float:
    """Returns tokens a second of training, without the compilation."""
    return statistics.median(x["tokens_per_second"] for x in found["train"])


def summarise(results: dict[Any, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns a row for each attention and length."""
    rows = []
    for (attention, length), runs in sorted(results.items()):
        of_model = [run["test_accuracy"] for run in runs]
        of_floor = [run["bag_of_words_read_test_accuracy"] for run in runs]
        documents = sum(run["documents"]["train"] for run in runs)
        rows.append(
            {
                "attention": attention,
                "length": length,
                "read": sum(run["train_tokens"] for run in runs) / documents,
                "folds": len(runs),
                "speed": statistics.median(map(speed, runs)),
                "accuracy": mean(of_model),
                FLOOR: mean(of_floor),
                "difference": mean(map(operator.sub, of_model, of_floor)),
            }
        )
    return rows


def mean(values: Iterable[float]) -> tuple[float, float]:
    """Returns the mean and its standard error, 0 where it is not known."""
    values = list(values)
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return statistics.mean(values), spread / math.sqrt(len(values))


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints the rows as a table."""
    print(
        "\n| attention | tokens read at most | on average | folds | accuracy "
        f"| {FLOOR} | difference | tokens a second |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    for row in rows:
        shares = [f"{row[name][0]:.3f}" for name in ("accuracy", FLOOR)]
        shares.append(f"{row['difference'][0]:+.3f}")
        if row["folds"] > 1:
            for i, name in enumerate(("accuracy", FLOOR, "difference")):
                shares[i] += f" ± {row[name][1]:.3f}"
        print(
            f"| {row['attention']} | {row['length']:,} | {row['read']:,.0f} "
            f"| {row['folds']} | {' | '.join(shares)} | {row['speed']:,.0f} |"
        )


def draw(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Draws accuracy and speed over the tokens that are read."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    accuracy, speeds = figure.subplots(1, 2)
    names = list(dict.fromkeys(row["attention"] for row in rows))
    lengths = sorted({row["length"] for row in rows})
    for number, name in enumerate(names):
        own = [row for row in rows if row["attention"] == name]
        style = {
            "label": name,
            "color": COLOURS[number % len(COLOURS)],
            "marker": "o",
        }
        x = [row["length"] for row in own]
        accuracy.errorbar(
            x,
            *zip(*(row["accuracy"] for row in own), strict=True),
            capsize=4,
            **style,
        )
        speeds.plot(x, [row["speed"] for row in own], **style)
    floors = {row["length"]: row[FLOOR][0] for row in rows}
    accuracy.plot(
        lengths,
        [floors[length] for length in lengths],
        "--",
        color="#8a8a8a",
        label=f"{FLOOR}, the same tokens",
    )
    for axes in accuracy, speeds:
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("tokens that are read of a document, at most")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, loc="lower right")
    accuracy.set_ylabel("test accuracy ± standard error")
    accuracy.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    speeds.set_ylabel("tokens a second, training")
    speeds.set_ylim(bottom=0)
    speeds.yaxis.set_major_formatter("{x:,.0f}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted: the same call goes on with the next run.")
