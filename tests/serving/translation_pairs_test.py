"""Where the pairs of sentences of `examples/translate.py` come from."""

import gzip
import hashlib
import importlib
import pathlib
import shutil
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

PARTS = ("train", "validation", "test")
pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


@pytest.fixture
def pairs():
    return importlib.import_module("translation_pairs")


@pytest.fixture
def debian(monkeypatch, tmp_path):
    """The module, on a system of its own with no list and no source."""
    module = importlib.import_module("debian_descriptions")
    for name in ("lists", "etc/sources.list.d", "bin"):
        (tmp_path / "system" / name).mkdir(parents=True)
    system = tmp_path / "system"
    monkeypatch.setattr(module, "LISTS", system / "lists")
    monkeypatch.setattr(module, "SOURCES", system / "etc")
    monkeypatch.setattr(module, "RELEASE", system / "os-release")
    return types.SimpleNamespace(module=module, system=system)


def test_a_table_is_read_line_by_line(pairs, tmp_path):
    table = tmp_path / "pairs.tsv"
    table.write_bytes(
        "\ufeffOne cat.\tUn gatto.\r\n two\u2028dogs \t due cani\n"
        "One cat.\tUna gatta.".encode()
    )
    assert pairs.read_table("pairs.tsv") == [
        ("One cat.", "One cat.", "Un gatto."),
        ("two\u2028dogs", "two\u2028dogs", "due cani"),
        ("One cat.", "One cat.", "Una gatta."),
    ]
    table.write_text("a\tb\n")
    assert pairs.read_table("pairs.tsv") == [("a", "a", "b")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"no tab", "Line 3 of `--pairs` 'pairs.tsv' must be .*'no tab'"),
        (b"", "Line 3 .* one tab"),
        (b"a\tb\tc", r"Line 3 .* one tab.*'a\\tb\\tc'"),
        (b" \tb", "Line 3 .* one tab"),
        (b"a\t ", "Line 3 .* one tab"),
        (b"a\tb\xff", "Line 3 .* is not UTF-8"),
    ],
)
def test_wrong_lines_are_named(pairs, tmp_path, line, message):
    content = b"a\tb\nc\td\n" + line + b"\ne\tf\n"
    (tmp_path / "pairs.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        pairs.read_table("pairs.tsv")


def test_a_table_must_exist(pairs):
    with pytest.raises(ValueError, match=r"must be a file.*'missing'"):
        pairs.read_table("missing")


def test_a_split_holds_out_whole_groups(pairs):
    sure = [pairs.Pair(f"group {i}", f"s{i}", f"t{i}") for i in range(30)]
    some = st.builds(
        pairs.Pair,
        st.sampled_from(["group 1", "group 2", "a", "b", "c"]),
        st.sampled_from(["s3", "s4", "s5"]) | st.text("xyz", min_size=1),
        st.sampled_from(["t3", "t4", "u"]),
    )

    @given(st.lists(some, max_size=20), st.integers(1, 9))
    def check(others, held_out):
        rows = sure + others
        corpus = pairs.split(rows, held_out)
        assert pairs.split(rows[::-1], held_out) == corpus
        groups = {}
        for row in rows:
            groups.setdefault(row.group, set()).add(row[1:])
        parts = [list(zip(*getattr(corpus, x), strict=True)) for x in PARTS]
        for part in parts:
            assert len(set(part)) == len(part)
        train, validation, test = map(set, parts)
        for part in (validation, test):
            is_one_group = any(part <= group for group in groups.values())
            assert is_one_group or len(part) <= held_out
        sources = [{source for source, _ in part} for part in parts]
        assert not sources[0] & sources[1]
        assert not sources[0] & sources[2]
        assert not sources[1] & sources[2]
        # Nothing else is lost.
        held = sources[1] | sources[2]
        everything = {row[1:] for row in rows}
        assert train >= {x for x in everything if x[0] not in held} - (
            validation | test
        )
        assert train | validation | test <= everything

    check()


def test_a_split_is_by_hash_and_takes_a_tenth_at_most(pairs):
    rows = [pairs.Pair(str(i), f"s{i}", f"t{i}") for i in range(40)]
    ordered = sorted(
        rows, key=lambda row: hashlib.sha256(row.group.encode()).digest()
    )
    corpus = pairs.split(rows, 2000)
    assert {*corpus.test.sources} == {row.source for row in ordered[:4]}
    assert {*corpus.validation.sources} == {row.source for row in ordered[4:8]}
    assert len(corpus.train.sources) == 32
    assert corpus.counts == {"repeated": 0}
    fewer = pairs.split(rows, 3, most=10)
    assert [len(getattr(fewer, x).sources) for x in pairs.PARTS] == [10, 3, 3]
    assert {*fewer.train.sources} <= {row.source for row in ordered[6:]}


def test_a_split_needs_three_groups(pairs):
    rows = [pairs.Pair("ab"[i % 2], f"s{i}", "t") for i in range(40)]
    with pytest.raises(ValueError, match=r"40 pairs of 2 groups.*to train"):
        pairs.split(rows, 5)


LIBRARY = """Package: {package}
Description-md5: {key}
Description-{language}: {title}
"""


def write_lists(folder, prefix="archive_dists_stable_main"):
    """Writes lists with all that is to be aligned, and much that is not."""
    english = [
        LIBRARY.format(
            package="libpicture1",
            key="1111",
            language="en",
            title="small library to read pictures",
        )
        + " This library reads pictures of\n many kinds, quickly.\n .\n"
        "  * it reads several kinds of\n    pictures of all sizes\n"
        "  - it also writes pictures of one kind\n .\n"
        " It is too short.",
        LIBRARY.format(
            package="picture-doc",
            key="2222",
            language="en",
            title="documentation of the library of pictures",
        )
        + " One paragraph more than the translation has.\n .\n"
        " Another paragraph that was not translated.",
        LIBRARY.format(
            package="other",
            key="3333",
            language="en",
            title="this title has no translation at all",
        ),
        LIBRARY.format(
            package="same",
            key="4444",
            language="en",
            title="a title that is the same twice",
        ),
    ]
    italian = [
        LIBRARY.format(
            package="libpicture1",
            key="1111",
            language="it",
            title="piccola libreria per leggere immagini",
        )
        + " Questa libreria legge immagini\n di molti tipi, velocemente.\n .\n"
        "  * legge molti tipi di immagini\n  * scrive anche immagini\n .\n"
        " È troppo corta.",
        LIBRARY.format(
            package="picture-doc",
            key="2222",
            language="it",
            title="documentazione della libreria di immagini",
        )
        + " Un solo paragrafo che manca di altro.",
        LIBRARY.format(
            package="same",
            key="4444",
            language="it",
            title="a title that is the same twice",
        ),
        LIBRARY.format(
            package="unknown",
            key="5555",
            language="it",
            title="titolo senza alcuna descrizione inglese",
        ),
    ]
    packages = (
        "Package: libpicture1\nSource: picture (1.2-3)\nVersion: 1\n\n"
        "Package: picture-doc\nSource: picture\n\nPackage: same\n"
    )
    for name, text in (
        ("i18n_Translation-en", "\n\n".join(english)),
        ("i18n_Translation-it", "\n\n".join(italian)),
        # Another language whose name begins in the same way.
        ("i18n_Translation-ita", "Package: wrong"),
        ("binary-amd64_Packages", packages),
    ):
        (folder / f"{prefix}_{name}").write_text(text, encoding="utf-8")


ALIGNED = [
    (
        "picture",
        "This library reads pictures of many kinds, quickly.",
        "Questa libreria legge immagini di molti tipi, velocemente.",
    ),
    (
        "picture",
        "documentation of the library of pictures",
        "documentazione della libreria di immagini",
    ),
    (
        "picture",
        "it also writes pictures of one kind",
        "scrive anche immagini",
    ),
    (
        "picture",
        "it reads several kinds of pictures of all sizes",
        "legge molti tipi di immagini",
    ),
    (
        "picture",
        "small library to read pictures",
        "piccola libreria per leggere immagini",
    ),
]


def test_lists_of_the_system_are_aligned_and_kept(debian, capsys):
    write_lists(debian.system / "lists")
    read = debian.module.read_descriptions
    assert read("it", "kept/here") == ALIGNED
    assert "wrote kept/here/debian-en-it.tsv" in capsys.readouterr().out
    shutil.rmtree(debian.system / "lists")
    assert read("it", "kept/here") == ALIGNED
    assert [x.name for x in pathlib.Path("kept/here").iterdir()] == [
        "debian-en-it.tsv"
    ]
    pathlib.Path("kept/here/debian-en-it.tsv").write_text("a\tb\n")
    with pytest.raises(ValueError, match=r"debian-en-it\.tsv' is damaged"):
        read("it", "kept/here")


@pytest.mark.skipif(
    not pathlib.Path("/usr/lib/apt/apt-helper").exists(),
    reason="needs apt-helper, the program of Debian and Ubuntu",
)
def test_lists_may_be_compressed(debian):
    lists = debian.system / "lists"
    write_lists(lists)
    for path in list(lists.iterdir()):
        content = gzip.compress(path.read_bytes())
        path.with_name(f"{path.name}.gz").write_bytes(content)
        path.unlink()
    assert debian.module.read_descriptions("it", ".") == ALIGNED


SOURCES = """# A comment
Types: deb deb-src
# another
URIs: http://archive.example/debian
Suites: stable stable-updates
Components: main contrib
Signed-By:
 -----BEGIN KEY-----
 .
 abc
 -----END KEY-----

Types: deb
URIs: http://security.example/debian
Suites: stable-security
Components: main

Enabled: no
Types: deb
URIs: http://disabled.example/debian
Suites: stable
Components: main
"""
LINES = """
deb-src http://source.example/debian stable main
# deb http://comment.example/debian stable main
deb [arch=amd64 signed-by=/usr/share/key.gpg] http://ubuntu.example/ubuntu \
stable universe restricted # words
deb http://vendor.example/ stable vendor
"""
ASKED = """Types: deb
URIs: http://archive.example/debian
Suites: stable
Components: main
Signed-By:
 -----BEGIN KEY-----
 .
 abc
 -----END KEY-----
Languages: en it
Targets: Packages Translations

Types: deb
URIs: http://ubuntu.example/ubuntu
Suites: stable
Components: universe
Signed-By: /usr/share/key.gpg
Languages: en it
Targets: Packages Translations
"""
APT_GET = """#!/bin/sh
set -e
[ "$1" = -c ] && [ "$3 $4" = "-q update" ]
cp "$2" {system}/asked.conf
folder=$(dirname "$2")
cp "$folder/archive.sources" {system}/asked.sources
test -d "$folder/lists/partial"
cp {system}/archive/* "$folder/lists"
"""


def write_system(debian, monkeypatch, apt_get=APT_GET):
    (debian.system / "os-release").write_text('VERSION_CODENAME="stable"\n')
    etc = debian.system / "etc"
    (etc / "sources.list.d/debian.sources").write_text(SOURCES)
    (etc / "sources.list").write_text(LINES)
    (debian.system / "archive").mkdir()
    write_lists(debian.system / "archive")
    program = debian.system / "bin/apt-get"
    program.write_text(apt_get.format(system=debian.system))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{debian.system / 'bin'}:/usr/bin:/bin")


def test_what_the_system_lacks_is_fetched(debian, monkeypatch):
    write_system(debian, monkeypatch)
    # Only one of the two languages is there.
    write_lists(debian.system / "lists")
    (italian,) = (debian.system / "lists").glob("*-it")
    italian.unlink()
    assert debian.module.read_descriptions("it", "kept") == ALIGNED
    assert (debian.system / "asked.sources").read_text() == ASKED
    settings = (debian.system / "asked.conf").read_text()
    places = [x for x in settings.split('"') if x.startswith("/")]
    kept = str(pathlib.Path("kept").absolute())
    assert all(x.startswith(kept) or x == "/dev/null" for x in places)
    # The folder of the lists is gone.
    assert [x.name for x in pathlib.Path("kept").iterdir()] == [
        "debian-en-it.tsv"
    ]


def test_other_suites_than_the_release(debian, monkeypatch):
    write_system(debian, monkeypatch)
    (debian.system / "os-release").write_text("VERSION_CODENAME=next\n")
    asked = debian.module.archive("fr")
    assert asked.count("Types: deb") == 1
    assert "Suites: stable\n" in asked
    assert "Languages: en fr" in asked


def test_a_language_that_the_archive_lacks(debian, monkeypatch):
    write_system(debian, monkeypatch)
    with pytest.raises(ValueError, match=r"(?s)descriptions in 'fr'.*archive"):
        debian.module.read_descriptions("fr", "kept")
    assert not any(pathlib.Path("kept").iterdir())


def test_a_failing_program_is_cited(debian, monkeypatch):
    write_system(debian, monkeypatch, "#!/bin/sh\necho no route >&2\nexit 100")
    with pytest.raises(ValueError, match=r"failed: no route.*`--pairs FILE`"):
        debian.module.read_descriptions("it", "kept")
    assert not any(pathlib.Path("kept").iterdir())


def test_elsewhere_than_on_debian(debian, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"Debian or Ubuntu.*`--pairs FILE`"):
        debian.module.read_descriptions("it", "kept")


def test_sources_without_an_archive(debian, monkeypatch):
    write_system(debian, monkeypatch)
    (debian.system / "etc/sources.list.d/debian.sources").unlink()
    (debian.system / "etc/sources.list").unlink()
    with pytest.raises(ValueError, match="name no archive of Debian or Ubu"):
        debian.module.read_descriptions("it", "kept")
