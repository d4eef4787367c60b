"""The program `examples/kernel_documents.py`, with a package of its own."""

import functools
import gzip
import importlib
import pathlib
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.skipif(
    shutil.which("dpkg-deb") is None,
    reason="needs dpkg-deb, the program of Debian and Ubuntu",
)
CONTROL = """Package: linux-doc-6.1
Version: 6.1.0-1
Architecture: all
Maintainer: nobody <nobody@example.com>
Description: documentation
"""
LICENCE = ".. SPDX-License-Identifier: GPL-2.0\n"
TEXT = "Title\n=====\n" + "A sentence of the documentation. " * 40 + "\n"


@pytest.fixture
def main(run_example):
    return functools.partial(run_example, "kernel_documents")


def write_package(parts, name="linux-doc.deb"):
    root = pathlib.Path("package")
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(CONTROL)
    for part in parts:
        folder = root / "usr/share/doc/linux-doc-6.1/Documentation" / part
        (folder / "deep").mkdir(parents=True)
        content = gzip.compress((LICENCE + TEXT + part).encode())
        (folder / "deep/one.rst.gz").write_bytes(content)
        (folder / "two.rst").write_text(f"{part}\n{LICENCE}{TEXT}\xe9")
        (folder / "short.rst").write_text("short")
        (folder / "index.rst").write_text(TEXT)
        (folder / "index.rst.gz").write_bytes(content)
        (folder / "picture.svg").write_text(TEXT)
        (folder / "one.h.rst.exceptions").write_text(TEXT)
    words = ["dpkg-deb", "--build", "--root-owner-group", str(root), name]
    subprocess.run(words, check=True, capture_output=True)
    return name


def test_documents_are_written_without_what_gives_them_away(main, capsys):
    program = importlib.import_module("kernel_documents")
    package = write_package(program.PARTS)
    main("documents", "--package", package)
    written = {
        path.relative_to("documents").as_posix(): path.read_text()
        for path in pathlib.Path("documents").rglob("*.*")
    }
    assert written.keys() == {
        f"{part}/{name}.txt"
        for part in program.PARTS
        for name in ("deep_one", "two")
    }
    for name, text in written.items():
        part = name.split("/")[0]
        assert text in (TEXT + part, f"{part}\n{TEXT}\xe9")
    printed = capsys.readouterr().out
    assert "linux-doc-6.1 6.1.0-1" in printed
    assert "    2 documents of hwmon" in printed


def test_another_package_is_refused_and_nothing_is_written(main):
    package = write_package(["hwmon"])
    with pytest.raises(ValueError, match=r"must be linux-doc-6\.1"):
        main("documents", "--package", package)
    pathlib.Path("text.deb").write_text("no package")
    with pytest.raises(ValueError, match=r"dpkg-deb.*failed"):
        main("documents", "--package", "text.deb")
    with pytest.raises(ValueError, match=r"must be a file.*'missing\.deb'"):
        main("documents", "--package", "missing.deb")
    assert not pathlib.Path("documents").exists()


def test_a_folder_that_exists_stays(main):
    pathlib.Path("documents").mkdir()
    with pytest.raises(ValueError, match="'documents' exists already"):
        main("documents")


def test_without_the_programs_it_says_where_the_package_is(main, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"'apt-get'.*`--package`"):
        main("documents")
    assert not pathlib.Path("documents").exists()
