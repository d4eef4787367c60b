"""Every block of code in the README runs."""

import pathlib
import re
import shlex
import subprocess
import sys

import keras
import pytest

ROOT = pathlib.Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.M | re.S)


def blocks(language):
    return [code for name, code in BLOCKS if name == language]


def test_all_blocks_are_known():
    assert {name for name, _ in BLOCKS} == {"python", "bash"}
    assert README.count("```") == 2 * len(BLOCKS)


def test_python_blocks_run_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), namespace)
    *_, difference, answer = capsys.readouterr().out.strip().splitlines()
    assert float(difference) < 1e-5
    assert answer.startswith(("[b'negative'] [[", "[b'positive'] [["))


@pytest.mark.parametrize("code", blocks("bash"))
def test_commands_name_programs_and_options_that_exist(code):
    """Installing, training and testing anew are not for a test."""
    for command in code.replace("\\\n", " ").strip().split(" && "):
        words = shlex.split(command)
        assert words[0] == "python"
        if words[1:3] == ["-m", "pip"]:
            continue
        if words[1:3] == ["-m", "nox"]:
            assert (ROOT / "noxfile.py").exists()
            continue
        arguments = words[1:]
        if arguments[0] == "-c":
            assert "--signature_def" in arguments
            arguments = arguments[:3]
        finished = subprocess.run(
            [sys.executable, *arguments, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        for option in re.findall(r"--\w+", " ".join(words)):
            assert option in finished.stdout


def test_ci_runs_the_test_command():
    script = (ROOT / ".ci" / "run").read_text()
    pattern = re.search(r"grep -m 1 '\^(.*?)'", script).group(1)
    lines = [c for c in README.splitlines() if c.startswith(pattern)]
    assert lines == ["python -m pip install nox && python -m nox"]


def test_layers_of_the_table_are_those_that_exist():
    import keras_rfa

    table = README.split("## Layers")[1].split("| feature map")[0]
    names = set(re.findall(r"`([A-Z]\w+)`", table))
    public = {
        name
        for name, value in vars(keras_rfa.layers).items()
        if isinstance(value, type) and issubclass(value, keras.layers.Layer)
    }
    assert names == public
