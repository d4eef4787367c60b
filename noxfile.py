"""The tests, each backend in an environment of its own.

`nox` runs everything, `nox -s jax` one session, and `nox -s jax -- -k golden`
hands on arguments to pytest.
"""

import functools
import os
import pathlib
import re
import shutil
from collections.abc import Callable

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = True

# What needs TensorFlow and TensorFlow Text beside the backend.
SERVING = "tests/serving"
# Of these, what no backend touches, or what runs whole examples: the session
# `serving` has them, and `package` what the README shows.
ONCE = tuple(
    f"{SERVING}/{name}_test.py"
    for name in (
        "buckets",
        "compare_language_models",
        "decoding",
        "documents",
        "kernel_documents",
        "plain_texts",
        "readme",
        "sentencepiece",
        "tokenizers",
        "translate",
        "translation_pairs",
        "vocabulary",
    )
)
# Any release in the range of pyproject.toml will do; this one also comes as a
# build for CPUs alone.
TORCH = "torch==2.13.0"
# What runs the exports for devices and other servers.
RUNTIMES = ("ai-edge-litert>=2.1,<3", "onnxruntime>=1.23,<2")

Tests = Callable[[nox.Session], None]


def environment(tests: Tests) -> Tests:
    """Makes a session, whose environment does not stay where `CI` is set.

    Each takes up to 4 GB, and a machine for CI may have little room.
    """

    @functools.wraps(tests)
    def run(session: nox.Session) -> None:
        try:
            tests(session)
        finally:
            if os.environ.get("CI"):
                shutil.rmtree(session.virtualenv.location)

    return nox.session(run)


def run_tests(session: nox.Session, backend: str, *paths: str) -> None:
    """Runs tests on a backend, in as many processes as there are cores."""
    session.run(
        "pytest",
        *paths,
        *(session.posargs or ["--numprocesses=auto", "--dist=worksteal"]),
        env={"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        # What was asked for may leave no test of some paths.
        success_codes=(0, 5) if session.posargs else (0,),
    )


@environment
def lint(session: nox.Session) -> None:
    """Checks style and types."""
    session.install("-e", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@environment
def torch(session: nox.Session) -> None:
    """Layers and contract on torch, with no other backend installed."""
    session.install("-e", ".[test]", TORCH)
    run_tests(session, "torch", "tests", f"--ignore={SERVING}")


@environment
def jax(session: nox.Session) -> None:
    """Layers and contract on JAX, with no other backend installed."""
    session.install("-e", ".[jax,test]")
    run_tests(session, "jax", "tests", f"--ignore={SERVING}")


@environment
def tensorflow(session: nox.Session) -> None:
    """Layers, contract, export and the training of classifiers."""
    session.install("-e", ".[tensorflow,onnx,translation,test]", *RUNTIMES)
    ignored = tuple(f"--ignore={path}" for path in ONCE)
    # TensorFlow keeps what XLA compiled, some 25 MB a test, until its process
    # ends: two processes with all the tests would need more than 24 GB.
    tests = pathlib.Path("tests")
    files = sorted(str(path) for path in tests.glob("*_test.py"))
    folders = sorted({str(path.parent) for path in tests.glob("*/*_test.py")})
    folders.remove(SERVING)
    for paths in (files, folders, [SERVING]):
        run_tests(session, "tensorflow", *paths, *ignored)


@environment
def serving(session: nox.Session) -> None:
    """Text, export and examples on JAX, and files that change the backend."""
    session.install("-e", ".[jax,translation,test]", TORCH)
    readme = f"--ignore={SERVING}/readme_test.py"
    run_tests(session, "jax", SERVING, readme)


@environment
def oldest(session: nox.Session) -> None:
    """A part of the tests with the oldest releases that pyproject.toml allows.

    Not torch, whose builds for CPUs alone are not on the usual index.
    """
    project = nox.project.load_toml("pyproject.toml")["project"]
    groups = project["optional-dependencies"]
    extras = ("jax", "tensorflow", "text", "examples", "test")
    requirements = project["dependencies"].copy()
    for extra in extras:
        requirements += groups[extra]
    constraints = pathlib.Path(session.create_tmp(), "constraints.txt")
    constraints.write_text(
        "\n".join(
            re.sub(r">=([^,;]+)[^;]*", r"==\1", requirement)
            for requirement in requirements
            if ">=" in requirement
        )
    )
    session.install("-e", f".[{','.join(extras)}]", "-c", str(constraints))
    everywhere = (
        "golden_test.py",
        "facilities_test.py",
        "layers/errors_test.py",
        "layers/transformer_block_test.py",
    )
    on_tensorflow = ("serving/tokenizers_test.py", "serving/export_test.py")
    for backend, paths in (
        ("jax", everywhere),
        ("tensorflow", everywhere + on_tensorflow),
    ):
        run_tests(session, backend, *(f"tests/{path}" for path in paths))


@environment
def package(session: nox.Session) -> None:
    """Builds the wheel, and runs the code of the README from it."""
    readme_test = pathlib.Path(SERVING, "readme_test.py").absolute()
    output = session.create_tmp()
    session.install("build")
    session.run("python", "-m", "build", "--outdir", output, silent=True)
    (wheel,) = pathlib.Path(output).glob("*.whl")
    session.install(f"{wheel}[jax,translation,test]")
    session.chdir(output)
    session.run(
        "python",
        "-c",
        "import keras_rfa; assert 'site-packages' in keras_rfa.__file__",
        env={"KERAS_BACKEND": "jax"},
    )
    run_tests(session, "jax", str(readme_test))
