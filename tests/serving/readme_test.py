"""Every block of code in the README runs."""

import pathlib
import re
import shlex

import keras
from programs import run_python

import keras_rfa

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.M | re.S)


def blocks(language):
    return [code for name, code in BLOCKS if name == language]


def test_all_blocks_are_known():
    assert {name for name, _ in BLOCKS} == {"python", "bash", "text"}
    assert README.count("```") == 2 * len(BLOCKS)


def test_python_blocks_run_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), namespace)
    lines = capsys.readouterr().out.strip().splitlines()
    (difference,) = (x for x in lines if re.fullmatch(r"[\d.]+(e-\d+)?", x))
    assert float(difference) < 1e-5
    answers = ("[b'negative'] [[", "[b'positive'] [[")
    assert any(line.startswith(answers) for line in lines)


def test_the_client_asks_an_export(tmp_path):
    (command,) = (c for c in blocks("bash") if "saved_model_cli" in c)
    words = shlex.split(command.replace("\\\n", " "))
    path = words[words.index("--dir") + 1]
    model = keras_rfa.models.document_classifier(
        257,
        2,
        num_layers=1,
        hidden_dim=8,
        num_heads=1,
        intermediate_dim=8,
    )
    keras_rfa.export.export_classifier(
        model, keras_rfa.text.ByteTokenizer(), ["no", "yes"], tmp_path / path
    )
    assert (
        "output key label" in run_python(*words[1:], directory=tmp_path).stdout
    )


def test_the_programs_exist_and_have_the_options():
    """Installing, training and testing anew are not for a test."""
    found = re.findall(r"^.*python (examples/\S+\.py)(.*)$", README, re.M)
    assert len(found) >= 1
    for program, options in found:
        text = run_python(ROOT / program, "--help").stdout
        for option in re.findall(r"--[\w-]+", options):
            assert option in text
    assert (ROOT / "noxfile.py").exists()


def test_ci_runs_the_test_command():
    script = (ROOT / ".ci" / "run").read_text()
    pattern = re.search(r"grep -m 1 '\^(.*?)'", script).group(1)
    lines = [c for c in README.splitlines() if c.startswith(pattern)]
    assert lines == ["python -m pip install nox && python -m nox"]


def test_layers_of_the_table_are_those_that_exist():
    table = README.split("## Layers")[1].split("| feature map")[0]
    names = set(re.findall(r"`([A-Z]\w+)`", table))
    public = {
        name
        for name, value in vars(keras_rfa.layers).items()
        if isinstance(value, type) and issubclass(value, keras.layers.Layer)
    }
    assert names == public
