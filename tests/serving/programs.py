"""Python in a process of its own."""

import os
import pathlib
import subprocess
import sys

import keras_rfa

PACKAGE = pathlib.Path(keras_rfa.__file__).parents[1]
EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def run_python(*words, directory=None, **environment):
    """Runs `python *words`, which must succeed, and returns what it printed.

    It finds the same package, wherever it runs.
    """
    finished = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(PACKAGE), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    return finished
