"""Pairs of sentences to learn translation from, out of a table of one's own.

`debian_descriptions.py` has others, of which this module makes parts too.
"""

import hashlib
import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from options import UserError

PARTS = ("train", "validation", "test")


class Pair(NamedTuple):
    """A sentence and its translation; a group is never divided."""

    group: str
    source: str
    target: str


class Pairs(NamedTuple):
    """Sentences and their translations, in the same order."""

    sources: list[str]
    targets: list[str]


class Corpus(NamedTuple):
    """Pairs to learn from, to choose options by and to judge by.

    Args:
        train: Pairs.
        validation: Pairs, none of whose sources is in `train`.
        test: Pairs, none of whose sources is in one of the others.
        counts: dict of what was left out.
    """

    train: Pairs
    validation: Pairs
    test: Pairs
    counts: dict[str, int]


def read_table(path: str) -> list[Pair]:
    """Reads a file of lines that are a sentence, a tab and its translation.

    Pairs with the same sentence are a group.

    Raises:
        UserError: if there is no such file, or naming the first line that is
            not UTF-8, has no tab or several, or has nothing on a side of it.
    """
    if not pathlib.Path(path).is_file():
        raise UserError(f"`--pairs` must be a file. Received: {path!r}")
    pairs = []
    # Only these ends of lines: sentences may hold others, such as U+2028.
    lines = pathlib.Path(path).read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if number == len(lines) and not line:
            break
        where = f"Line {number} of `--pairs` {path!r}"
        try:
            sides = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{where} is not UTF-8: {error}") from error
        source, *targets = (side.strip() for side in sides.split("\t"))
        if len(targets) != 1 or not source or not targets[0]:
            raise UserError(
                f"{where} must be a sentence, one tab and its translation. "
                f"Received: {sides.rstrip()!r}"
            )
        pairs.append(Pair(source, source, targets[0]))
    return pairs


def split(
    pairs: Iterable[Pair],
    held_out: int,
    most: int | None = None,
) -> Corpus:
    """Splits pairs into parts, the same at each call.

    Groups are ordered by their hashes; the first are to test, the next to
    validate. A source that is to test is nowhere else, and one to validate
    not in the training.

    Args:
        pairs: Pairs with their groups.
        held_out: int. At most so many pairs, and at most a tenth of all, are
            to test, and as many to validate; at least those of one group.
        most: int. At most so many pairs to learn from. `None` takes all.

    Raises:
        UserError: if one part would be empty.
    """
    unique = dict.fromkeys(pairs)
    groups: dict[str, list[Pair]] = {}
    for pair in unique:
        groups.setdefault(pair.group, []).append(pair)
    ordered = [groups[name] for name in sorted(groups, key=_hash)]
    size = min(held_out, len(unique) // 10)
    parts: dict[str, list[Pair]] = {}
    for part in ("test", "validation"):
        parts[part] = []
        while ordered and (
            not parts[part] or len(parts[part]) + len(ordered[0]) <= size
        ):
            parts[part] += ordered.pop(0)
    parts["train"] = [pair for group in ordered for pair in group]
    counts = {"repeated": 0}
    seen: set[str] = set()
    for part in reversed(PARTS):
        kept = {
            (pair.source, pair.target): None
            for pair in parts[part]
            if pair.source not in seen
        }
        counts["repeated"] += len(parts[part]) - len(kept)
        seen.update(source for source, _ in kept)
        # By sentence, so that the first so many are of all kinds.
        sides = sorted(kept, key=lambda pair: _hash("\t".join(pair)))
        if part == "train" and most is not None:
            sides = sides[:most]
        parts[part] = [Pair("", *pair) for pair in sides]
    missing = [part for part in PARTS if not parts[part]]
    if missing:
        raise UserError(
            "There must be different sentences to train, to validate and to "
            f"test. Received: {len(unique)} pairs of {len(groups)} groups, "
            f"which leaves none to {' and to '.join(missing)}"
        )
    return Corpus(
        **{part: _sides(parts[part]) for part in PARTS}, counts=counts
    )


def _sides(pairs: Sequence[Pair]) -> Pairs:
    return Pairs([x.source for x in pairs], [x.target for x in pairs])


def _hash(text: str) -> bytes:
    """Returns what orders texts in a way that more texts do not change."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
