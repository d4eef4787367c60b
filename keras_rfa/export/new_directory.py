"""Directories and files that appear whole or not at all."""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def new_directory(
    path: str | os.PathLike[str], *, overwrite: bool = False
) -> Iterator[str]:
    """Gives a temporary directory that takes its place when all is written.

    Args:
        path: the directory to make.
        overwrite: bool. Whether to replace a directory that exists.

    Raises:
        FileExistsError: at once, if `path` exists and is not to be replaced,
            or if it is no directory.

    Example:

    >>> with keras_rfa.export.new_directory("results") as directory:
    ...     model.save(f"{directory}/model.keras")
    """
    target = pathlib.Path(path)
    _check_target(target, "directory", target.is_dir(), overwrite)
    with _temporary_beside(target) as temporary:
        written = os.path.join(temporary, "new")
        os.mkdir(written)
        yield written
        old = os.path.join(temporary, "old")
        if target.exists():
            os.rename(target, old)
        try:
            os.rename(written, target)
        except OSError:
            if os.path.exists(old):
                os.rename(old, target)
            raise


@contextlib.contextmanager
def new_file(
    path: str | os.PathLike[str], *, overwrite: bool = False
) -> Iterator[str]:
    """Gives the path of a temporary file that takes its place when written.

    Args:
        path: the file to make. The temporary one has the same ending.
        overwrite: bool. Whether to replace a file that exists.

    Raises:
        FileExistsError: at once, if `path` exists and is not to be replaced,
            or if it is no file.
    """
    target = pathlib.Path(path)
    _check_target(target, "file", target.is_file(), overwrite)
    with _temporary_beside(target) as temporary:
        written = os.path.join(temporary, target.name)
        yield written
        os.replace(written, target)


def _check_target(
    target: pathlib.Path, kind: str, is_kind: bool, overwrite: bool
) -> None:
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not is_kind:
        raise FileExistsError(
            f"{str(target)!r} is no {kind}, and is not replaced by one. "
            "Choose another path."
        )
    if not overwrite:
        raise FileExistsError(
            f"{str(target)!r} exists. Choose another path, or pass "
            "`overwrite=True` to replace it."
        )


@contextlib.contextmanager
def _temporary_beside(target: pathlib.Path) -> Iterator[str]:
    """Gives a directory on the same disk, from which a rename is enough."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
