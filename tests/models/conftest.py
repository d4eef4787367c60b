import pytest


@pytest.fixture(autouse=True)
def quick(quick_compilation):
    """There is much to compile, of which little runs."""
