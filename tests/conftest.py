import importlib.util
import os

# Where both are installed, torch must be loaded before TensorFlow.
if (
    os.environ.get("KERAS_BACKEND") == "torch"
    and importlib.util.find_spec("torch") is not None
):
    import torch  # noqa: F401

import hypothesis
import keras
import pytest

keras.config.disable_traceback_filtering()

# "ci" draws the same examples on every run, however slow the first compilation
# is. `pytest tests/fuzz --hypothesis-profile=long` draws others each time, and
# many more.
hypothesis.settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=30,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "long",
    hypothesis.settings.get_profile("ci"),
    derandomize=False,
    max_examples=1250,
    print_blob=True,
)
hypothesis.settings.load_profile("ci")


@pytest.fixture(autouse=True)
def seeds():
    keras.utils.set_random_seed(0)


@pytest.fixture(autouse=True, scope="module")
def clean_session():
    yield
    keras.utils.clear_session()


@pytest.fixture
def quick_compilation():
    """For tests that compile much and run little."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
