"""The tests, each backend in an environment of its own.

`nox` runs everything, `nox -s jax` one session, and `nox -s jax -- -k golden`
hands on arguments to pytest.
"""

import pathlib

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = True

# What needs TensorFlow and TensorFlow Text beside the backend.
SERVING = "tests/serving"
# Any release in the range of pyproject.toml will do; this one also comes as a
# build for CPUs alone.
TORCH = "torch==2.13.0"


def run_tests(session: nox.Session, backend: str, *paths: str) -> None:
    """Runs tests on a backend, in as many processes as there are cores."""
    session.run(
        "pytest",
        *paths,
        *(session.posargs or ["--numprocesses=auto"]),
        env={"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Checks style and types."""
    session.install("-e", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session
def torch(session: nox.Session) -> None:
    """Layers and contract on torch, with no other backend installed."""
    session.install("-e", ".[test]", TORCH)
    run_tests(session, "torch", "tests", f"--ignore={SERVING}")


@nox.session
def jax(session: nox.Session) -> None:
    """Layers and contract on JAX, with no other backend installed."""
    session.install("-e", ".[jax,test]")
    run_tests(session, "jax", "tests", f"--ignore={SERVING}")


@nox.session
def tensorflow(session: nox.Session) -> None:
    """Layers, contract, text, export and examples on TensorFlow."""
    session.install("-e", ".[tensorflow,examples,test]")
    run_tests(session, "tensorflow", "tests")


@nox.session
def serving(session: nox.Session) -> None:
    """Text, export and examples on JAX, and files that change the backend."""
    session.install("-e", ".[jax,examples,test]", TORCH)
    run_tests(session, "jax", SERVING)


@nox.session
def package(session: nox.Session) -> None:
    """Builds the wheel, and runs the code of the README from it."""
    readme_test = pathlib.Path(SERVING, "readme_test.py").absolute()
    output = session.create_tmp()
    session.install("build")
    session.run("python", "-m", "build", "--outdir", output, silent=True)
    (wheel,) = pathlib.Path(output).glob("*.whl")
    session.install(f"{wheel}[jax,examples,test]")
    session.chdir(output)
    session.run(
        "python",
        "-c",
        "import keras_rfa; assert 'site-packages' in keras_rfa.__file__",
        env={"KERAS_BACKEND": "jax"},
    )
    run_tests(session, "jax", str(readme_test))
