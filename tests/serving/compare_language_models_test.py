"""The program `examples/language_model.py`, run as a user runs it."""

import functools
import importlib
import itertools
import json
import types

import keras
import numpy as np
import pytest
from programs import EXAMPLES, run_python

from keras_rfa.models import language_model
from keras_rfa.text import ByteTokenizer

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")
PROGRAM = EXAMPLES / "language_model.py"
# Ends in the second training, when its backup has been written.
KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv.pop(1))
import language_model, language_model_training

begin = language_model_training.Progress.on_epoch_begin

def killed(self, epoch, logs=None):
    if epoch == 2 and self.model.stateful:
        os.kill(os.getpid(), signal.SIGKILL)
    begin(self, epoch, logs)

language_model_training.Progress.on_epoch_begin = killed
language_model.main()
"""
OPTIONS = {
    "--text-dir": "works",
    "--output-dir": "outputs/first",
    "--steps": 24,
    "--batch-size": 4,
    "--length": 8,
    "--layers": 1,
    "--width": 8,
    "--heads": 2,
    "--convolution": 2,
    "--passage": 12,
    "--learning-rate": 0.02,
}
# What one process compiled the next one finds.
QUICK = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
}


def write_works(folder):
    draw = np.random.default_rng(0)
    folder.mkdir()
    for i in range(4):
        words = draw.choice(["the sea", "a boat", "sail", "wind"], 60)
        (folder / f"{i}.txt").write_text(" ".join(words))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs the whole program, which is killed and started again."""
    folder = tmp_path_factory.mktemp("run")
    write_works(folder / "works")
    words = [str(x) for option in OPTIONS.items() for x in option]
    words += ["--attentions", "linear", "--stateful", "--resume"]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache"), **QUICK}
    with pytest.raises(AssertionError):
        run_python("-c", KILLED, EXAMPLES, *words, directory=folder, **cache)
    left = {p.name for p in (folder / "outputs/first.progress").iterdir()}
    assert left == {
        "options.json",
        "linear.json",
        "linear.keras",
        "linear_stateful.backup",
    }
    assert not (folder / "outputs/first").exists()
    done = run_python(PROGRAM, *words, directory=folder, **cache)
    return folder, done.stdout


def test_a_killed_comparison_goes_on(run):
    folder, printed = run
    assert "Found linear, which is trained" in printed
    assert "Train linear_stateful" in printed
    assert [path.name for path in (folder / "outputs").iterdir()] == ["first"]
    assert {path.name for path in (folder / "outputs/first").iterdir()} == {
        *("linear.keras", "linear_stateful.keras"),
        *("linear.txt", "linear_stateful.txt"),
        *("results.json", "training.png", "loss_by_position.png"),
    }
    for picture in (folder / "outputs/first").glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")
    results = json.loads((folder / "outputs/first/results.json").read_text())
    for model in results["models"]:
        steps = [point["step"] for point in model["points"]]
        assert steps == list(range(1, 21))
    # Two points of the second training were there already.
    assert printed.count(" s left") == 18


def test_figures(run):
    folder, printed = run
    results = json.loads((folder / "outputs/first/results.json").read_text())
    works = results["works"]
    named = sorted(name for part in works.values() for name in part)
    assert named == [f"{i}.txt" for i in range(4)]
    assert [len(works[part]) for part in works] == [2, 1, 1]
    for part, names in works.items():
        assert f"tokens of {', '.join(names)}" in printed, part
    text = (folder / "works" / works["test"][0]).read_bytes()
    models = {model["name"]: model for model in results["models"]}
    for model in models.values():
        test = model["test"]
        for measure in ("segments", "stretches", "works"):
            bits = test[measure]["bits_per_byte"]
            assert 2**bits == pytest.approx(test[measure]["perplexity"])
            assert 0 < bits < 8
        assert model["points"][-1]["train_nats"] < np.log(257)
        places = [(p["first"], p["last"]) for p in test["by_position"]]
        assert places[0][0] == 1
        assert places[-1] == (8 * 15 + 1, 8 * 16)
        assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(places))
        assert text.decode().startswith(model["prompt"])
        written = (folder / f"outputs/first/{model['name']}.txt").read_text()
        assert written == f"{model['prompt']}|{model['passage']}"
        assert model["state_bytes"] > 0
    assert results["options"]["steps"] == 20
    table = [line.split()[0] for line in printed.splitlines()[-6:-3]]
    assert table == ["bits", "linear", "linear_stateful"]


def test_a_state_that_grows_reads_no_whole_works(run, tmp_path, capsys):
    report = importlib.import_module("language_model_report")
    folder, _ = run
    results = json.loads((folder / "outputs/first/results.json").read_text())
    cached = results["models"][0]
    cached["test"]["works"] = None
    report.print_table(results["models"], 8)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[2][0] == "linear"
    assert rows[2][5] == "-"
    # Of short texts, no stretch is complete.
    cached["test"]["by_position"] = []
    report.plot_positions(tmp_path / "a.png", [cached], 8)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_a_saved_model_has_the_figures(run):
    folder, _ = run
    results = json.loads((folder / "outputs/first/results.json").read_text())
    text = folder / "works" / results["works"]["test"][0]
    ids = np.frombuffer(text.read_bytes(), "uint8").astype("int32") + 1
    for result in results["models"]:
        path = folder / f"outputs/first/{result['name']}.keras"
        model = keras.models.load_model(path)
        assert not model.compiled
        bits = bits_of(model, ids[None])
        expected = result["test"]["works"]["bits_per_byte"]
        assert bits.mean() == pytest.approx(expected, rel=1e-4)


def bits_of(model, ids):
    """Returns the bits of each token but the first, by NumPy."""
    logits = model.predict_on_batch(ids[:, :-1]).astype("float64")
    logits -= logits.max(axis=-1, keepdims=True)
    norm = np.log(np.exp(logits).sum(axis=-1))
    chosen = np.take_along_axis(logits, ids[:, 1:, None], axis=-1)[..., 0]
    return (norm - chosen) / np.log(2)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
def test_evaluation_counts_every_token_once(attention, quick_compilation):
    evaluation = importlib.import_module("language_model_evaluation")
    training = importlib.import_module("language_model_training")
    model = language_model(
        30,
        num_layers=1,
        hidden_dim=8,
        num_heads=2,
        intermediate_dim=8,
        attention=attention,
        convolution=2,
        dropout=0.0,
    )
    draw = np.random.default_rng(1)
    works = [draw.integers(1, 30, n).astype("int32") for n in (70, 66, 9)]
    tokens = training.Tokens([], [], works, 30, 2.0)
    options = types.SimpleNamespace(batch_size=3, length=4)
    results = evaluation.evaluate(options, model, tokens)

    def expected(length):
        rows = [
            work[None, i : i + length + 1]
            for work in works
            for i in range(0, len(work) - 1, length)
        ]
        return [bits_of(model, row)[0] / 2 for row in rows]

    for measure, length in (("segments", 4), ("stretches", 64), ("works", 99)):
        if results[measure] is not None:
            bits = np.concatenate(expected(length))
            assert len(bits) == 69 + 65 + 8
            assert results[measure]["bits_per_byte"] == pytest.approx(
                bits.mean(), rel=1e-4
            )
            assert results[measure]["perplexity"] == pytest.approx(
                2 ** (2 * bits.mean()), rel=1e-4
            )
    complete = np.stack([row for row in expected(64) if len(row) == 64])
    assert len(complete) == 2
    for point in results["by_position"]:
        part = complete[:, point["first"] - 1 : point["last"]].mean(axis=1)
        assert point["bits_per_byte"] == pytest.approx(part.mean(), rel=1e-4)
        error = abs(part[1] - part[0]) / 2
        assert point["standard_error"] == pytest.approx(error, rel=1e-3)


class Interrupted(Exception):
    pass


@pytest.fixture
def main(run_example, tmp_path, monkeypatch):
    """Runs the program up to the first training, which is interrupted."""
    write_works(tmp_path / "works")
    program = importlib.import_module("language_model")

    def interrupt(*_):
        raise Interrupted

    monkeypatch.setattr(program, "train", interrupt)
    return functools.partial(run_example, "language_model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text-dir", "missing"], "`--text-dir` must be a folder"),
        (["--text-dir", "."], "three text files.*1 in '.'"),
        (["--width", 9, "--heads", 2], "`hidden_dim` must be a multiple"),
        (["--batch-size", 5000], "too short.*`batch_size`"),
        (["--output-dir", "works"], "'works' exists and is not the output"),
    ],
)
def test_what_a_user_can_mend(tmp_path, main, arguments, message):
    if "." in arguments:
        for path in [*(tmp_path / "works").iterdir()][1:]:
            path.unlink()
    with pytest.raises(ValueError, match=message):
        main("--text-dir", "works", *arguments)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--attentions", "rfq"),
        ("--steps", "0"),
        ("--temperature", "0"),
        ("--tokenizer", "characters"),
    ],
)
def test_wrong_values(main, option, value, capsys):
    with pytest.raises(SystemExit):
        main(option, value)
    assert f"argument {option}: invalid" in capsys.readouterr().err


def test_a_comparison_goes_on_with_its_own_options_only(tmp_path, main):
    words = ["--text-dir", "works", "--resume", "--batch-size", 4]
    with pytest.raises(Interrupted):
        main(*words)
    with pytest.raises(ValueError, match="width is 128 there and 64 here"):
        main(*words, "--width", 64)
    (tmp_path / "works" / "0.txt").write_text("another text " * 9)
    with pytest.raises(ValueError, match=r"texts is .* there and .* here"):
        main(*words)
    write_works(tmp_path / "again")
    with pytest.raises(Interrupted):
        main("--text-dir", "again", *words[2:])
    names = [path.name for path in (tmp_path / "runs").iterdir()]
    assert names == ["language_model.progress"]


def test_pieces_of_words(tmp_path):
    training = importlib.import_module("language_model_training")
    program = importlib.import_module("language_model")
    texts = importlib.import_module("plain_texts")
    write_works(tmp_path / "works")
    works = texts.read_texts("works")
    options = types.SimpleNamespace(tokenizer="wordpiece", vocabulary_size=40)
    tokens = training.tokenize(program.make_tokenizer(options, works), works)
    assert tokens.vocabulary_size <= 40
    size = sum(len(work.text) for work in works.test)
    count = sum(map(len, tokens.test))
    assert tokens.bytes_per_token == pytest.approx(size / count)
    assert 1 < tokens.bytes_per_token < 9
    exact = training.tokenize(ByteTokenizer(), works)
    assert exact.bytes_per_token == 1.0
