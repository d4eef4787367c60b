import importlib
import sys

import pytest
from programs import EXAMPLES


@pytest.fixture
def in_an_empty_folder(tmp_path, monkeypatch):
    """Runs a test in an empty folder, where it can import the examples."""
    monkeypatch.chdir(tmp_path)
    for folder in EXAMPLES, EXAMPLES / "benchmarks":
        monkeypatch.syspath_prepend(str(folder))


@pytest.fixture
def run_example(in_an_empty_folder, monkeypatch):
    """Runs the program of a module in this process, with a command line."""

    def run(module, *words):
        program = importlib.import_module(module)
        monkeypatch.setattr(sys, "argv", ["program", *map(str, words)])
        program.main()

    return run
