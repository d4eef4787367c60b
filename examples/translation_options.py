"""The command line of `translate.py`."""

import argparse
from collections.abc import Sequence

from debian_descriptions import LANGUAGES
from options import ATTENTIONS, add_output, at_least, positive_float


def parse_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line, or other words."""
    parser = argparse.ArgumentParser(
        description="Train a translator, and measure it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--pairs", help="a file of lines: a sentence, a tab, its translation"
    )
    what.add_argument(
        "--debian",
        choices=[f"en-{language}" for language in LANGUAGES],
        help="the descriptions of the packages of Debian or Ubuntu, from the "
        "lists of this system or, where they are not there, its archive",
    )
    what.add_argument(
        "--compare",
        nargs="+",
        metavar="OUTPUT_DIR",
        help="print a table of runs that are done, and do nothing else",
    )
    add(
        "--data-dir",
        default="documents/debian",
        help="the folder that keeps the pairs of --debian",
    )
    add_output(parser, "runs/translate")
    add(
        "--resume",
        action="store_true",
        help="keep a backup of the training beside --output-dir, and go on "
        "with that of a run that was killed",
    )
    add(
        "--attention",
        choices=ATTENTIONS,
        default="rfa",
        help="of encoder and decoder; the gate is in the decoder alone",
    )
    add(
        "--learning-rate",
        type=positive_float,
        default=2e-3,
        help="the highest learning rate",
    )
    add("--weight-decay", type=positive_float, default=0.01, help="of AdamW")
    add("--dropout", type=share, default=0.1, help="the share to drop")
    add(
        "--label-smoothing",
        type=share,
        default=0.1,
        help="the share of the target that all pieces have in common",
    )
    add("--seed", type=at_least(0), default=0, help="of weights and order")
    add(
        "--vocabulary-size",
        type=at_least(300),
        default=4000,
        help="pieces to learn, 256 of them bytes, for both languages",
    )
    add(
        "--max-pairs",
        type=at_least(1),
        help="learn from at most so many pairs; all by default",
    )
    for name, default, text in (
        ("--held-out", 2000, "pairs to test, and to validate; a tenth at most"),
        ("--max-length", 64, "tokens of a side; longer ones are not learned"),
        (
            "--tokens-per-batch",
            2048,
            "tokens of a side of a step, with padding",
        ),
        ("--epochs", 3, "times to read the training pairs"),
        ("--layers", 2, "blocks of the encoder, and of the decoder"),
        ("--width", 128, "entries of the vector of a token"),
        ("--heads", 4, "attention heads of a block"),
        ("--features", 32, "random features of a head"),
        ("--beams", 4, "beginnings that the search keeps; 1 is greedy"),
    ):
        add(name, type=at_least(1), default=default, help=text)
    options = parser.parse_args(words)
    if options.max_length < 4:
        parser.error("--max-length must be 4 or more")
    return options


def share(text: str) -> float:
    """Returns a number from 0 to below 1, as `argparse` wants it."""
    if not 0 <= float(text) < 1:
        raise ValueError
    return float(text)
