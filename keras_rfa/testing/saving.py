"""The promise that files give a layer back, also in another process."""

import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np

from keras_rfa.testing.assertions import assert_close
from keras_rfa.testing.subject import MakeLayer, Subject

Array = Any


def check_saving(
    make_layer: MakeLayer | dict[str, MakeLayer],
    form: str | dict[str, str] = "causal",
    backends: Sequence[str] | None = None,
    modules: Iterable[str] = (),
) -> None:
    """Checks that configs and files give the layer back.

    A model is saved, loaded in a fresh process and called there: its outputs
    must be the same. A model that is made from the config and then loads a
    file of weights must have the same weights.

    Args:
        make_layer: as in `check_reference`, or a dict of such functions, by
            name. All of them share one fresh process for each backend.
        form: as in `check_reference`, or a dict.
        backends: list of the backends that must load the files. Defaults to
            the one in use.
        modules: names of modules that the fresh process imports first, those
            that register your own functions and layers with Keras.
    """
    makers = (
        make_layer if isinstance(make_layer, dict) else {"model": make_layer}
    )
    forms = form if isinstance(form, dict) else dict.fromkeys(makers, form)
    backends = backends or [keras.backend.backend()]
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        expected = {}
        for key, make in makers.items():
            _check_config(make())
            expected[key] = _save(Subject(make, forms[key]), directory, key)
        for backend in backends:
            _load_elsewhere(directory, backend, modules)
            for key, outputs in expected.items():
                actual = np.load(directory / f"{backend}-{key}.npy")
                assert_close(f"{key}: outputs on {backend}", actual, outputs)


def _check_config(layer: keras.layers.Layer) -> None:
    config = layer.get_config()
    again = type(layer).from_config(config).get_config()
    if again != config:
        different = sorted(k for k in config if config[k] != again.get(k))
        raise AssertionError(
            f"The config of {layer.name} changes in a round trip: {different}"
        )


def _save(subject: Subject, directory: pathlib.Path, key: str) -> Array:
    inputs = [subject.sequence(2, 9), np.repeat(subject.other, 2, axis=0)]
    model = subject.model()
    expected = model.predict(inputs, verbose=0)
    model.save(directory / f"{key}.keras")
    weights = directory / f"{key}.weights.h5"
    model.save_weights(weights)
    other = keras.Model.from_config(model.get_config())
    other.load_weights(weights)
    assert_close(f"{key}: weights", other.get_weights(), model.get_weights(), 0)
    np.savez(directory / f"{key}.npz", *inputs)
    return expected


_LOAD = """
import importlib, pathlib, sys
import numpy, keras, keras_rfa
directory, backend, *modules = sys.argv[1:]
for module in modules:
    importlib.import_module(module)
for path in pathlib.Path(directory).glob("*.keras"):
    model = keras.saving.load_model(path)
    inputs = list(numpy.load(path.with_suffix(".npz")).values())
    outputs = model.predict(inputs, verbose=0)
    numpy.save(path.with_name(f"{backend}-{path.stem}.npy"), outputs)
"""


def _load_elsewhere(
    directory: pathlib.Path, backend: str, modules: Iterable[str]
) -> None:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(directory), backend, *modules],
        env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise AssertionError(
            f"A fresh process does not load the model on {backend}:\n"
            + done.stderr
        )
