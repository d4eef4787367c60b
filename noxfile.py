"""The tests, each backend in an environment of its own.

`nox` runs everything; `nox -s jax` one session; `nox -s jax -- -k golden`
hands arguments on to pytest.
"""

import nox

nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True

# What needs TensorFlow beside the backend: text, export and the examples.
SERVING = "tests/serving"
# The builds of PyTorch on PyPI are for CUDA, save this one where a machine
# has it; any release from the range of pyproject.toml passes.
TORCH = "torch==2.13.0"


def run_tests(session: nox.Session, backend: str, *paths: str) -> None:
    """Runs the tests on a backend; fails on tests that are skipped."""
    arguments = session.posargs or ["-p", "no:cacheprovider"]
    session.run(
        "pytest",
        *paths,
        *arguments,
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
def jax(session: nox.Session) -> None:
    """Layers and contract on JAX, with no other backend installed."""
    session.install("-e", ".[jax,test]")
    run_tests(session, "jax", "tests", f"--ignore={SERVING}")


@nox.session
def torch(session: nox.Session) -> None:
    """Layers and contract on PyTorch, with no other backend installed."""
    session.install("-e", ".[test]", TORCH)
    run_tests(session, "torch", "tests", f"--ignore={SERVING}")


@nox.session
def tensorflow(session: nox.Session) -> None:
    """Everything on TensorFlow: layers, contract, text, export, examples."""
    session.install("-e", ".[tensorflow,examples,test]")
    run_tests(session, "tensorflow", "tests")


@nox.session
def serving(session: nox.Session) -> None:
    """What goes from one backend to another: files, exports, examples."""
    session.install("-e", ".[jax,examples,test]", TORCH)
    run_tests(session, "jax", SERVING)


@nox.session
def package(session: nox.Session) -> None:
    """Builds the wheel, and runs the code of the README from it."""
    session.install("build")
    output = session.create_tmp()
    session.run("python", "-m", "build", "--outdir", output, silent=True)
    wheels = sorted(session.bin_paths and __import__("glob").glob(f"{output}/*.whl"))
    session.install(f"{wheels[-1]}[examples,jax,test]")
    session.chdir(output)
