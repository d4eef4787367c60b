import pytest
from own_model import built


@pytest.fixture(autouse=True)
def quick(quick_compilation):
    """There is much to compile, of which little runs."""


@pytest.fixture(scope="module")
def model():
    return built()


@pytest.fixture
def prompts():
    return [[5, 2, 9, 11, 3], [7], [4, 4, 21]]
