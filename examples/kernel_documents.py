"""Write the documentation of the Linux kernel as folders of texts.

    python examples/kernel_documents.py documents/kernel
    python examples/classify_long_documents.py --data-dir documents/kernel

A document for each file of a thousand bytes or more, in a folder for each of
six large parts of the documentation: about 1,300 documents, of 75 to 17,000
words, half of them of less than 600. Lists of contents and lines of licences,
which would give the part away, are left out.

The texts are those of the Debian package `linux-doc-6.1`, which is downloaded
(37 MB) but not installed; `--package` takes one that is already there. They
are under the GNU General Public License, version 2.
"""

import argparse
import gzip
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from options import UserError

from keras_rfa.export import new_directory

PACKAGE = "linux-doc-6.1"
PARTS = (
    "admin-guide",
    "driver-api",
    "filesystems",
    "hwmon",
    "networking",
    "userspace-api",
)
SMALLEST = 1000  # bytes of a document
WHERE_FROM = (
    "Run `apt-get update` first, or download the package "
    f"{PACKAGE} of Debian 12 by other means and pass the file with `--package`."
)


def main() -> None:
    """Runs the program; the folder of documents appears whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory", help="the folder to write")
    parser.add_argument("--package", help=f"a file {PACKAGE}_*.deb")
    options = parser.parse_args()
    if pathlib.Path(options.directory).exists():
        raise UserError(
            f"{options.directory!r} exists already. Choose another folder."
        )
    with (
        new_directory(options.directory) as directory,
        tempfile.TemporaryDirectory() as temporary,
    ):
        package = options.package or download(temporary)
        root = unpack(package, temporary)
        for part in PARTS:
            documents = write_part(root / part, pathlib.Path(directory, part))
            print(f"{documents:5} documents of {part}")
    print(f"Wrote {options.directory}")


def download(directory: str) -> str:
    """Fetches the package by Debian's own program; returns the file."""
    print(f"Download {PACKAGE} (37 MB)", flush=True)
    run(["apt-get", "download", "-q", PACKAGE], directory)
    (package,) = pathlib.Path(directory).glob("*.deb")
    return str(package)


def unpack(package: str, directory: str) -> pathlib.Path:
    """Unpacks the package; returns the folder of the documentation."""
    if not pathlib.Path(package).is_file():
        raise UserError(f"`--package` must be a file. Received: {package!r}")
    version = run(["dpkg-deb", "--show", package]).strip()
    print(f"Unpack {version.replace(chr(9), ' ')}", flush=True)
    run(["dpkg-deb", "--extract", package, f"{directory}/unpacked"])
    roots = [
        root
        for root in pathlib.Path(directory).glob("unpacked/**/Documentation")
        if all((root / part).is_dir() for part in PARTS)
    ]
    if not roots:
        raise UserError(
            f"`--package` must be {PACKAGE}, with the folders {PARTS} of the "
            f"kernel's documentation. Received: {package!r}"
        )
    return roots[0]


def run(words: Sequence[str], directory: str | None = None) -> str:
    """Runs a program of Debian's, and returns what it prints."""
    if shutil.which(words[0]) is None:
        raise UserError(f"This needs the program {words[0]!r}. {WHERE_FROM}")
    finished = subprocess.run(
        words, cwd=directory, capture_output=True, text=True, check=False
    )
    if finished.returncode:
        raise UserError(
            f"`{' '.join(words)}` failed: {finished.stderr.strip()}\n"
            f"{WHERE_FROM}"
        )
    return finished.stdout


def write_part(source: pathlib.Path, target: pathlib.Path) -> int:
    """Writes the documents of one part; returns how many they are."""
    written = 0
    for path in sorted(source.rglob("*")):
        name = "_".join(path.relative_to(source).parts).removesuffix(".gz")
        is_list = path.name.startswith("index.")
        if not path.is_file() or is_list or not name.endswith(".rst"):
            continue
        text = read_document(path)
        if len(text.encode()) < SMALLEST:
            continue
        target.mkdir(exist_ok=True)
        output = target / f"{name.removesuffix('.rst')}.txt"
        output.write_text(text, encoding="utf-8")
        written += 1
    return written


def read_document(path: pathlib.Path) -> str:
    """Returns a text without the line that names its licence."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    text = content.decode("utf-8", "replace")
    return re.sub(r"^.*SPDX-License-Identifier.*\n", "", text, flags=re.M)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted: no documents were written.")
    except (UserError, OSError) as error:
        sys.exit(str(error))
