"""The command line of `language_model.py`."""

import argparse
from collections.abc import Sequence

from language_model_training import POINTS, Run
from options import ATTENTIONS, add_output, at_least, positive_float


def parse_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line, or other words."""
    parser = argparse.ArgumentParser(
        description="Train language models and compare them.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--text-dir", help="a folder of text files, each of them a work")
    add(
        "--data-dir",
        default="documents",
        help="where to keep the works of Shakespeare",
    )
    add_output(parser, "runs/language_model")
    add(
        "--resume",
        action="store_true",
        help="keep what is done in a folder beside --output-dir, and go on "
        "with that of a run that was killed",
    )
    add(
        "--attentions",
        nargs="+",
        choices=ATTENTIONS,
        default=["rfa_gated"],
        metavar="ATTENTION",
        help=f"those to compare, of {', '.join(ATTENTIONS)}",
    )
    add(
        "--stateful",
        action="store_true",
        help="train each attention but softmax once more, with a state that "
        "goes on from batch to batch",
    )
    add(
        "--positions",
        action=argparse.BooleanOptionalAction,
        help="add sinusoidal positions; by default to all but the gated "
        "attentions, whose gates tell the order at any distance",
    )
    add(
        "--tokenizer",
        choices=("bytes", "wordpiece"),
        default="bytes",
        help="what a token is",
    )
    add(
        "--vocabulary-size",
        type=at_least(6),
        default=4000,
        help="pieces of words to learn",
    )
    add(
        "--learning-rate",
        type=positive_float,
        default=3e-3,
        help="the highest learning rate",
    )
    add("--dropout", type=float, default=0.0, help="the share to drop")
    add("--seed", type=at_least(0), default=0, help="of weights and order")
    add(
        "--temperature",
        type=positive_float,
        default=0.8,
        help="how freely a passage is written",
    )
    for name, default, text in (
        ("--steps", 2000, f"of each training; a multiple of {POINTS}"),
        ("--batch-size", 16, "rows of a step"),
        ("--length", 256, "tokens of a row of a step"),
        ("--layers", 2, "blocks of the transformer"),
        ("--width", 128, "entries of the vector of a token"),
        ("--heads", 4, "attention heads of a block"),
        ("--features", 32, "random features of a head, of named attentions"),
        ("--convolution", 4, "tokens that each is joined with; 1 for none"),
        ("--passage", 1000, "tokens to write"),
    ):
        add(name, type=at_least(1), default=default, help=text)
    options = parser.parse_args(words)
    if options.steps > POINTS:
        options.steps -= options.steps % POINTS
    return options


def list_runs(options: argparse.Namespace) -> list[Run]:
    """Returns the trainings that the options ask for."""
    runs = []
    for attention in dict.fromkeys(options.attentions):
        runs.append(Run(attention))
        if options.stateful and attention != "softmax":
            runs.append(Run(attention, stateful=True))
    return runs
