"""Descriptions of Debian's packages, sentence by sentence, in two languages.

Volunteers have translated them; `apt` keeps them with the lists of packages,
in the language of the system. What is not among the lists of this system is
fetched by `apt-get` from the archive that the system's own sources name, into
a folder of its own: nothing of the system changes, and nobody needs to be root.
"""

import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence

from options import UserError
from translation_pairs import Pair

LANGUAGES = ("de", "fr", "it")
LISTS = pathlib.Path("/var/lib/apt/lists")
SOURCES = pathlib.Path("/etc/apt")
RELEASE = pathlib.Path("/etc/os-release")
APT_HELPER = pathlib.Path("/usr/lib/apt/apt-helper")
COMPONENTS = ("main", "universe")
SHORTEST, LONGEST, LONGEST_TARGET = 5, 60, 80  # words
ELSEWHERE = (
    "Elsewhere pass sentences of your own with `--pairs FILE`, or copy the "
    "`--data-dir` of such a system."
)
SETTINGS = """
Dir::Etc::sourcelist "{directory}/archive.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "{directory}/lists";
Dir::Cache "{directory}/cache";
Acquire::GzipIndexes "false";
APT::Sandbox::User "root";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
"""


def read_descriptions(language: str, data_dir: str) -> list[Pair]:
    """Returns English sentences with their translations.

    A sentence is the title, a paragraph or the item of a list, of 5 to 60
    words. Those of all packages of a source package are a group, since they
    say much the same.

    Args:
        language: string, one of `LANGUAGES`.
        data_dir: string. The folder that keeps the pairs, so that the next
            call has them at once.

    Raises:
        UserError: if this is neither Debian nor Ubuntu, or if nothing can be
            fetched.
    """
    kept = pathlib.Path(data_dir, f"debian-en-{language}.tsv")
    if not kept.exists():
        pairs = find_pairs(language, kept.parent)
        unfinished = kept.with_suffix(".unfinished")
        unfinished.write_text(
            "".join("\t".join(pair) + "\n" for pair in pairs), encoding="utf-8"
        )
        unfinished.replace(kept)
        print(f"  wrote {kept}")
    lines = kept.read_text(encoding="utf-8").split("\n")[:-1]
    if any(line.count("\t") != 2 for line in lines):
        raise UserError(f"{str(kept)!r} is damaged. Delete it.")
    return [Pair(*line.split("\t")) for line in lines]


def find_pairs(language: str, data_dir: pathlib.Path) -> list[Pair]:
    """Reads the lists of this system, or others fetched for the time being."""
    pairs = []
    if all(_translations(LISTS, x) for x in ("en", language)):
        print(f"  read {LISTS}", flush=True)
        pairs = sorted(align(LISTS, language))
    data_dir.mkdir(parents=True, exist_ok=True)
    if not pairs:
        with tempfile.TemporaryDirectory(dir=data_dir) as directory:
            lists = fetch(language, pathlib.Path(directory).absolute())
            pairs = sorted(align(lists, language))
    if not pairs:
        raise UserError(
            f"The archive has no descriptions in {language!r}. It was asked "
            f"for:\n{archive(language)}\n{ELSEWHERE}"
        )
    return pairs


def fetch(language: str, directory: pathlib.Path) -> pathlib.Path:
    """Fetches lists of packages and translations; returns their folder."""
    if shutil.which("apt-get") is None:
        raise UserError(
            "`--debian` reads the lists of packages of Debian or Ubuntu, and "
            f"this system has no `apt-get`. {ELSEWHERE}"
        )
    sources = archive(language)
    print("  fetch lists of packages by `apt-get` (about 20 MB)", flush=True)
    for name in ("lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True)
    (directory / "archive.sources").write_text(sources, encoding="utf-8")
    settings = directory / "apt.conf"
    settings.write_text(SETTINGS.format(directory=directory))
    _run("apt-get", "-c", str(settings), "-q", "update")
    return directory / "lists"


def archive(language: str) -> str:
    """Returns the part of the system's sources that names its archive."""
    release = RELEASE.read_text() if RELEASE.exists() else ""
    found = re.search(r'^VERSION_CODENAME="?([\w.-]+)', release, re.M)
    codename = found[1] if found else ""
    sources = [
        source
        for source in read_sources(SOURCES)
        if {*COMPONENTS} & {*source["Components"].split()}
    ]
    named = [x for x in sources if codename in x["Suites"].split()]
    if not sources:
        raise UserError(
            f"The sources of apt in {str(SOURCES)!r} name no archive of "
            f"Debian or Ubuntu. {ELSEWHERE}"
        )
    stanzas = []
    for source in named or sources[:1]:
        suite = codename if named else source["Suites"].split()[0]
        components = [x for x in COMPONENTS if x in source["Components"]]
        fields = {
            **source,
            "Suites": suite,
            "Components": " ".join(components),
            "Languages": f"en {language}",
            "Targets": "Packages Translations",
        }
        stanza = "".join(f"{name}: {x}\n" for name, x in fields.items())
        stanzas.append(stanza.replace(": \n", ":\n"))
    return "\n".join(stanzas)


def read_sources(folder: pathlib.Path) -> Iterator[dict[str, str]]:
    """Yields what the files of apt's sources say, of either format."""
    fields = ("Types", "URIs", "Suites", "Components", "Signed-By", "Trusted")
    parts = folder / "sources.list.d"
    for path in sorted(parts.glob("*.sources")):
        for stanza in read_stanzas(path.read_text(encoding="utf-8")):
            source = {x: stanza[x] for x in fields if x in stanza}
            is_used = stanza.get("Enabled", "yes").lower() != "no"
            is_complete = all(x in source for x in fields[:4])
            if is_used and is_complete and "deb" in source["Types"].split():
                yield source | {"Types": "deb"}
    line = re.compile(
        r"^[ \t]*deb[ \t]+(?:\[(.*?)\][ \t]+)?(\S+)[ \t]+(\S+)[ \t]+([^#\n]+)",
        re.M,
    )
    for path in (folder / "sources.list", *sorted(parts.glob("*.list"))):
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for options, *words in re.findall(line, text):
            names = {"signed-by": "Signed-By", "trusted": "Trusted"}
            chosen = dict(x.split("=", 1) for x in options.split() if "=" in x)
            values = dict(zip(fields, ["deb", *words], strict=False))
            yield values | {
                name: chosen[key]
                for key, name in names.items()
                if key in chosen
            }


def read_stanzas(text: str) -> Iterator[dict[str, str]]:
    """Yields the fields of each stanza; lines that go on keep their space."""
    for stanza in text.split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.split("\n"):
            if line.startswith("#"):
                continue
            if line.startswith((" ", "\t")):
                if name:
                    fields[name] += f"\n{line}"
            elif ":" in line:
                name, value = line.split(":", 1)
                fields[name] = value.strip()
        if fields:
            yield fields


def align(lists: pathlib.Path, language: str) -> Iterator[Pair]:
    """Yields the sentences of descriptions with their translations."""
    origins = {}
    for path in lists.glob("*_Packages*"):
        for stanza in read_stanzas(_read(path)):
            if "Package" in stanza:
                # A version may follow the name of the source package.
                source = stanza.get("Source", stanza["Package"]).split()[0]
                origins[stanza["Package"]] = source
    english = _read_descriptions(lists, "en")
    for key, (package, translation) in _read_descriptions(
        lists, language
    ).items():
        if key not in english:
            continue
        blocks = [divide(text) for text in (english[key][1], translation)]
        if [len(x) for x in blocks[0]] != [len(x) for x in blocks[1]]:
            # Something was added or left out: only the title is sure.
            blocks = [x[:1] for x in blocks]
        for both in zip(*blocks, strict=True):
            for source, target in zip(*both, strict=True):
                words = len(source.split())
                if (
                    SHORTEST <= words <= LONGEST
                    and 0 < len(target.split()) <= LONGEST_TARGET
                    and source != target
                ):
                    yield Pair(origins.get(package, package), source, target)


def divide(description: str) -> list[list[str]]:
    """Returns the sentences of each block: title, paragraph or list.

    Lines of a paragraph belong together. Of a list, or of what is set line
    by line, each item does, with the lines that are set further in.
    """
    title, *lines = description.split("\n")
    blocks = [[" ".join(title.split())]]
    paragraph: list[str] = []
    for line in [*lines, " ."]:
        if line.strip() != ".":
            paragraph.append(line[1:])
            continue
        if any(x.startswith((" ", "\t")) for x in paragraph):
            blocks.append(_items(paragraph))
        elif paragraph:
            blocks.append([" ".join(" ".join(paragraph).split())])
        paragraph = []
    return blocks


def _items(lines: Sequence[str]) -> list[str]:
    """Returns the items of a list, without what marks them."""
    items: list[str] = []
    for line in lines:
        marked = re.match(r"\s*(?:[*+-]|\d+[.)])\s+(.*)", line)
        words = " ".join((marked[1] if marked else line).split())
        if items and not marked and line.startswith(" "):
            items[-1] += f" {words}"
        else:
            items.append(words)
    return items


def _read_descriptions(
    lists: pathlib.Path, language: str
) -> dict[str, tuple[str, str]]:
    """Returns package and description, by the sum of the English one."""
    return {
        stanza["Description-md5"]: (stanza["Package"], stanza[name])
        for path in _translations(lists, language)
        for stanza in read_stanzas(_read(path))
        for name in [f"Description-{language}"]
        if {"Package", "Description-md5", name} <= stanza.keys()
    }


def _translations(lists: pathlib.Path, language: str) -> list[pathlib.Path]:
    paths = lists.glob(f"*_i18n_Translation-{language}*")
    wanted = re.compile(rf"Translation-{language}(\.\w+)?")
    return sorted(x for x in paths if wanted.fullmatch(x.name.split("_")[-1]))


def _read(path: pathlib.Path) -> str:
    """Returns the text of a list, which apt may have compressed."""
    if path.suffix in (".lz4", ".xz", ".gz", ".zst", ".bz2"):
        return _run(str(APT_HELPER), "cat-file", str(path))
    return path.read_text(encoding="utf-8")


def _run(*words: str) -> str:
    """Runs a program of Debian's, and returns what it prints."""
    finished = subprocess.run(words, capture_output=True, check=False)
    if finished.returncode:
        errors = finished.stderr.decode("utf-8", "replace").strip()
        raise UserError(f"`{' '.join(words)}` failed: {errors}. {ELSEWHERE}")
    return finished.stdout.decode("utf-8")
