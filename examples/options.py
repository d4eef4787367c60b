"""The command line of `classify_long_documents.py`."""

import argparse
import pathlib
from collections.abc import Callable, Sequence

ATTENTIONS = (
    "rfa",
    "rfa_arccos",
    "rfa_gated",
    "rfa_gated_arccos",
    "performer",
    "linear",
    "softmax",
)


class UserError(ValueError):
    """What whoever started the program can mend, by what the message says."""


def parse_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line, or other words."""
    parser = argparse.ArgumentParser(
        description="Train a classifier of long documents and export it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--data-dir", help="a folder of text files for each class"
    )
    source.add_argument("--csv", help="a table with a column of texts")
    add("--text-column", default="text", help="where --csv has the texts")
    add("--label-column", default="label", help="where --csv has the classes")
    add(
        "--fold",
        type=int,
        choices=range(10),
        default=0,
        help="which tenth of --data-dir or --csv is the test set",
    )
    add_output(parser, "runs/classify_long_documents")
    add(
        "--resume",
        action="store_true",
        help="keep a backup of the training beside --output-dir, and go on "
        "with that of a run that was killed",
    )
    add(
        "--attention",
        default="linear",
        help="rfa, rfa_arccos, rfa_gated, rfa_gated_arccos, performer, linear, "
        "softmax, or your own, module:function (the module in the current "
        "folder or installed), called with (num_heads, key_dim, name=name)",
    )
    add(
        "--tokenizer",
        choices=("wordpiece", "bytes"),
        default="wordpiece",
        help="what a token is",
    )
    add(
        "--learning-rate",
        type=positive_float,
        default=3e-3,
        help="the highest learning rate",
    )
    add(
        "--weight-decay",
        type=positive_float,
        default=0.01,
        help="how fast weights shrink, times the learning rate: more of it "
        "where there are few documents",
    )
    add("--dropout", type=float, default=0.4, help="the share to drop")
    add("--seed", type=at_least(0), default=0, help="of weights and order")
    add(
        "--vocabulary-size",
        type=at_least(6),
        default=8000,
        help="pieces to learn",
    )
    for name, default, text in (
        ("--max-length", 1024, "tokens of a document that are read"),
        ("--tokens-per-batch", 4096, "tokens of a step, with padding"),
        ("--epochs", 2, "times to read the training documents"),
        ("--layers", 1, "blocks of the transformer"),
        ("--width", 64, "entries of the vector of a token"),
        ("--heads", 2, "attention heads of a block"),
        ("--features", 16, "random features of a head, of named attentions"),
        ("--convolution", 4, "tokens that each is joined with; 1 for none"),
    ):
        add(name, type=at_least(1), default=default, help=text)
    add(
        "--window",
        type=at_least(1),
        help="read whole documents, so many tokens at once, from left to "
        "right; --max-length does not count then",
    )
    options = parser.parse_args(words)
    if options.window is not None:
        options.max_length = None
    if options.fold and options.data_dir is None and options.csv is None:
        parser.error(
            "--fold needs --data-dir or --csv: the reviews have one test set"
        )
    return options


def add_output(parser: argparse.ArgumentParser, default: str) -> None:
    """Adds the options that `check_output` reads."""
    parser.add_argument(
        "--output-dir", default=default, help="the folder to write"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the folder that an earlier run has written",
    )


def at_least(least: int) -> Callable[[str], int]:
    """Returns a type of integers, as `argparse` wants it."""

    def read(text: str) -> int:
        if int(text) < least:
            raise ValueError
        return int(text)

    read.__name__ = f"integer of at least {least},"
    return read


def positive_float(text: str) -> float:
    """Returns a finite number, as `argparse` wants it."""
    if not 0 < float(text) < float("inf"):
        raise ValueError
    return float(text)


def check_output(options: argparse.Namespace) -> None:
    """Refuses, before any work, to write over anything but an old run."""
    output = pathlib.Path(options.output_dir)
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not (output / "results.json").exists():
        raise UserError(
            f"{str(output)!r} exists and is not the output of an earlier run. "
            "Choose another `--output-dir`."
        )
    if not options.overwrite:
        raise UserError(
            f"{str(output)!r} holds an earlier run. Pass `--overwrite` to "
            "replace it, or choose another `--output-dir`."
        )
