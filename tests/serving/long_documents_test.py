"""The program `examples/benchmarks/long_documents.py`."""

import functools
import importlib
import json
import pathlib
import re

import keras
import pytest
from documents_test import write_documents
from programs import PACKAGE

# As small as the program allows, with one length to compile.
SMALL = ["--width", 8, "--heads", 1, "--vocabulary-size", 80]
SMALL += ["--tokens-per-batch", 512, "--epochs", 2]


@pytest.fixture
def main(run_example, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(PACKAGE))  # of what it starts
    return functools.partial(run_example, "long_documents")


def sweep(*words, further=SMALL):
    folders = ["--data-dir", "documents", "--output-dir", "sweep"]
    return [*folders, *words, "--", *further]


def pretend(name, found, **figures):
    """Writes what a run would have left behind."""
    path = pathlib.Path("sweep", name, "results.json")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**found, **figures}))


def test_a_sweep_goes_on_and_compares(main, capsys):
    write_documents(pathlib.Path("documents"))
    words = ["--attentions", "linear", "--lengths", 32, "--folds", 3]
    main(*sweep(*words, further=[*SMALL, "--seed", 7, "--resume"]))
    path = pathlib.Path("sweep/linear-32-3/results.json")
    found = json.loads(path.read_text())
    given = {"attention": "linear", "max_length": 32, "fold": 3, "seed": 3}
    assert given.items() < found["options"].items()
    assert found["options"]["width"] == 8
    printed = capsys.readouterr().out
    assert f"| 32 | 1 | {found['test_accuracy']:.3f} | " in printed
    for fold, accuracy in ((4, 0.5), (5, 0.7)):
        for attention in ("linear", "softmax"):
            for length in (32, 64):
                options = {
                    "attention": attention,
                    "max_length": length,
                    "fold": fold,
                    "seed": fold,
                }
                pretend(
                    f"{attention}-{length}-{fold}",
                    {**found, "options": {**found["options"], **options}},
                    test_accuracy=accuracy + (length == 64) * 0.1,
                    bag_of_words_read_test_accuracy=accuracy - 0.2,
                    train=[{"tokens_per_second": x} for x in (9, 20, 30)],
                )
    main(
        *sweep(
            *("--attentions", "linear", "softmax=32"),
            *("--lengths", 64, 32, 64, "--folds", 5, 4, 5),
            *("--plot", "pictures/plot.png"),
        )
    )
    printed = capsys.readouterr().out
    assert "[6 of 6] linear, 64 tokens, fold 5" in printed
    table = [x for x in printed.splitlines() if x.startswith("| ")]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table]
    floor = "0.400 ± 0.100"
    assert rows[2:] == [
        ["linear", "32", "32", "2", "0.600 ± 0.100", floor]
        + ["+0.200 ± 0.000", "20"],
        ["linear", "64", "32", "2", "0.700 ± 0.100", floor]
        + ["+0.300 ± 0.000", "20"],
        ["softmax", "32", "32", "2", "0.600 ± 0.100", floor]
        + ["+0.200 ± 0.000", "20"],
    ]
    picture = pathlib.Path("pictures/plot.png").read_bytes()
    assert picture.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 16}, "width=16 instead of 8"),
        (
            {"data_dir": None, "csv": "table.csv"},
            "csv='table.csv' instead of None, data_dir=None instead",
        ),
    ],
)
def test_runs_of_other_options_are_refused_before_any_work(
    changes, message, main, capsys
):
    program_options = importlib.import_module("options").parse_options
    words = ["--data-dir", "documents/", "--attention", "rfa", "--fold", 1]
    words += ["--max-length", 32, "--seed", 1, *SMALL]
    options = vars(program_options([str(word) for word in words])) | changes
    backend = keras.config.backend()
    pretend("rfa-32-1", {"options": options, "backend": backend})
    with pytest.raises(SystemExit, match=f"rfa-32-1.*with {message}"):
        main(*sweep("--attentions", "rfa", "--lengths", 32, "--folds", 0, 1))
    assert not capsys.readouterr().out


def test_a_run_that_fails_ends_the_sweep(main):
    with pytest.raises(SystemExit, match=r"This failed: .*--max-length 32"):
        main(*sweep("--attentions", "rfa", "--lengths", 32, "--folds", 0))
    assert not any(pathlib.Path("sweep").rglob("results.json"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--attentions", "rfa=many"], "NAME=TOKENS, value: 'rfa=many'"),
        (["--attentions", "rfa=8", "--lengths", 16], "reads any of --lengths"),
        (["--lengths", "0"], "--lengths"),
        (["--folds", "10"], "--folds"),
        (["--", "--window", "8"], "there is no length to vary"),
        (["--", "--widht", "8"], "--widht"),
    ],
)
def test_wrong_options(main, words, message, capsys):
    with pytest.raises(SystemExit):
        main("--data-dir", "documents", *words)
    assert re.search(message, capsys.readouterr().err)
