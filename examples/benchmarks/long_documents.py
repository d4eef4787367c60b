"""Accuracy and speed against the tokens of a document that are read.

    python examples/kernel_documents.py documents/kernel
    python examples/benchmarks/long_documents.py --data-dir documents/kernel

Trains `classify_long_documents.py`, in a process of its own, for each
attention, each `--max-length` and each fold, which is also the seed; after
`--` come further options for it. What is in `--output-dir` already is not done
again: a sweep that was interrupted goes on, and one that is called with more
lengths or folds adds them.

Accuracy is the mean over the folds, with its standard error, beside that of a
bag of words of the same tokens. Tokens a second are those of training without
compilation, the median over the run; a length is worth reading if both lines
say so.
"""

import argparse
import json
import math
import os
import pathlib
import shlex
import statistics
import subprocess
import sys
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

EXAMPLES = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(EXAMPLES))
from options import at_least  # noqa: E402  (it lies with the program)

PROGRAM = EXAMPLES / "classify_long_documents.py"
ATTENTIONS = {"rfa": math.inf, "softmax": 4096}
FLOOR = "bag of words"
VARIED = {"attention", "fold", "max_length", "output_dir", "seed"}
COLOURS = ("#1f5fa8", "#b03a48", "#3c8d5a", "#7b559c")


def main() -> None:
    """Runs what is not there yet, prints a table and draws it."""
    options, further = parse_options()
    attentions = dict(options.attentions or ATTENTIONS)
    runs = [
        (attention, length, fold)
        for fold in options.folds
        for length in sorted(options.lengths)
        for attention, longest in attentions.items()
        if length <= longest
    ]
    results: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for number, (attention, length, fold) in enumerate(runs, 1):
        print(
            f"[{number} of {len(runs)}] {attention}, {length:,} tokens, fold "
            f"{fold}",
            flush=True,
        )
        name = f"{attention.replace(':', '.')}-{length}-{fold}"
        words = {
            "--data-dir": options.data_dir,
            "--output-dir": options.output_dir / name,
            "--attention": attention,
            "--max-length": length,
            "--fold": fold,
            "--seed": fold,
        }
        found = train(words, further)
        print(
            f"  accuracy {found['test_accuracy']:.3f}, {FLOOR} "
            f"{found['bag_of_words_read_test_accuracy']:.3f}, "
            f"{speed(found):,.0f} tokens a second, "
            f"{found['total_seconds']:.0f} s",
            flush=True,
        )
        results.setdefault((attention, length), []).append(found)
        check_same_options([run for runs in results.values() for run in runs])
    rows = summarise(results)
    print_table(rows)
    plot = options.plot or options.output_dir / "long_documents.png"
    draw(rows, plot)
    print(f"\nWrote {plot}")


def parse_options() -> tuple[argparse.Namespace, list[str]]:
    """Reads the command line; what comes after `--` is for the program."""
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
        help="tenths of the documents, each the test set once",
    )
    add("--plot", type=pathlib.Path, help="a PNG, elsewhere than with the runs")
    return parser.parse_args(words[:cut]), words[cut + 1 :]


def read_attention(words: str) -> tuple[str, float]:
    """Returns the name of an attention and the most tokens it is to read."""
    name, _, longest = words.partition("=")
    return name, at_least(1)(longest) if longest else math.inf


def train(words: dict[str, Any], further: list[str]) -> dict[str, Any]:
    """Runs the program, or reads what it has found before."""
    path = pathlib.Path(words["--output-dir"], "results.json")
    if not path.exists():
        arguments = [str(x) for pair in words.items() for x in pair]
        command = [sys.executable, str(PROGRAM), *arguments, *further]
        finished = subprocess.run(
            command,
            env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if finished.returncode:
            sys.exit(f"{finished.stdout}\nThis failed: {shlex.join(command)}")
    return json.loads(path.read_text())


def check_same_options(results: list[dict[str, Any]]) -> None:
    """Refuses to compare runs of which some were made by another call."""
    first = results[0]
    for found in results:
        different = {
            name
            for name, value in found["options"].items()
            if name not in VARIED and value != first["options"].get(name)
        }
        if found["backend"] != first["backend"]:
            different.add("backend")
        if different:
            name = found["options"]["output_dir"]
            sys.exit(
                f"The run in {name!r} was made with another "
                f"{' and '.join(sorted(different))}. Delete it, or choose "
                "another `--output-dir`."
            )


def speed(found: dict[str, Any]) -> float:
    """Returns tokens a second of training, without the compilation."""
    return statistics.median(x["tokens_per_second"] for x in found["train"])


def summarise(results: dict[Any, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Returns a row for each attention and length."""
    rows = []
    for (attention, length), runs in results.items():
        row = {
            "attention": attention,
            "length": length,
            "folds": len(runs),
            "speed": statistics.median(map(speed, runs)),
            "memory": max(run["peak_memory_mib"] or math.nan for run in runs),
        }
        for name, key in (
            ("accuracy", "test_accuracy"),
            (FLOOR, "bag_of_words_read_test_accuracy"),
        ):
            values = [run[key] for run in runs]
            spread = statistics.stdev(values) if len(values) > 1 else math.nan
            row[name] = statistics.mean(values)
            row[f"{name} error"] = spread / math.sqrt(len(values))
        rows.append(row)
    return sorted(rows, key=lambda row: (row["attention"], row["length"]))


def print_table(rows: list[dict[str, Any]]) -> None:
    """Prints the rows as a table."""
    print(
        "\n| attention | tokens read | folds | accuracy | bag of words "
        "| tokens a second | MiB |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    for row in rows:
        print(
            f"| {row['attention']} | {row['length']:,} | {row['folds']} "
            f"| {row['accuracy']:.3f} ± {row['accuracy error']:.3f} "
            f"| {row[FLOOR]:.3f} ± {row[f'{FLOOR} error']:.3f} "
            f"| {row['speed']:,.0f} | {row['memory']:,.0f} |"
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
            [row["accuracy"] for row in own],
            [row["accuracy error"] for row in own],
            capsize=4,
            **style,
        )
        speeds.plot(x, [row["speed"] for row in own], **style)
    floors = {row["length"]: row[FLOOR] for row in rows}
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
        axes.set_xlabel("tokens of a document that are read, at most")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    accuracy.set_ylabel("test accuracy ± standard error")
    accuracy.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    speeds.set_ylabel("tokens a second, training")
    speeds.set_yscale("log")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted: the same call goes on with the next run.")
