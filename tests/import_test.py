import ast
import inspect
import os
import pathlib
import pkgutil
import subprocess
import sys

import keras
import pytest

import keras_rfa
from keras_rfa import (
    callbacks,
    export,
    generation,
    layers,
    models,
    ops,
    testing,
    text,
)

PACKAGE = pathlib.Path(keras_rfa.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
BACKENDS = {"tensorflow", "tensorflow_text", "jax", "torch"}
OPTIONAL = BACKENDS | {"keras_hub", "sentencepiece"}


def imported_at_the_top(node):
    """Yields the packages that importing a module imports."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.split(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield child.module.split(".")[0]
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from imported_at_the_top(child)


@pytest.mark.parametrize(
    "path", FILES, ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_no_module_imports_what_may_be_missing(path):
    imported = set(imported_at_the_top(ast.parse(path.read_text())))
    assert not imported & OPTIONAL


def test_the_walk_over_imports_finds_them():
    source = "class A:\n  try:\n    import jax.numpy\n  except E:\n    pass\n"
    assert set(imported_at_the_top(ast.parse(source))) == {"jax"}


def test_importing_loads_no_backend():
    names = [
        f"keras_rfa.{module.name}"
        for module in pkgutil.iter_modules([str(PACKAGE)])
    ]
    program = (
        "import sys, keras; before = set(sys.modules);"
        f"import {', '.join(names)}; print(*(sys.modules.keys() - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "KERAS_BACKEND": keras.backend.backend(),
            "PYTHONPATH": str(PACKAGE.parent),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "keras_rfa.layers" in loaded
    assert not loaded & OPTIONAL


@pytest.mark.parametrize(
    "module",
    [callbacks, export, generation, layers, models, ops, testing, text],
)
def test_public_names_have_docstrings(module):
    for name, value in vars(module).items():
        is_ours = getattr(value, "__module__", "").startswith("keras_rfa")
        if name.startswith("_") or not is_ours:
            continue
        assert inspect.getdoc(value), name
        if inspect.isclass(value):
            for method, function in vars(value).items():
                own = inspect.isfunction(function) and method[0] != "_"
                # Keras documents the methods that it calls.
                if own and not hasattr(keras.layers.Layer, method):
                    assert inspect.getdoc(function), f"{name}.{method}"


def test_each_public_layer_has_a_file_and_an_export():
    exported = {
        name for name, value in vars(layers).items() if inspect.isclass(value)
    }
    registered = set()
    for path in (PACKAGE / "layers").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.decorator_list:
                registered.add(node.name)
    assert exported == registered
    for name in exported:
        snake = "".join(
            "_" + letter.lower() if letter.isupper() else letter
            for letter in name
        ).lstrip("_")
        assert (PACKAGE / "layers" / f"{snake}.py").exists()


def test_layers_are_registered_under_the_name_of_the_package():
    for value in vars(layers).values():
        if inspect.isclass(value):
            registered = keras.saving.get_registered_name(value)
            assert registered == f"keras_rfa>{value.__name__}"
