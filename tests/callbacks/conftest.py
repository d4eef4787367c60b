import pytest


@pytest.fixture
def path(tmp_path):
    """The file of a backup, in a folder that is not there yet."""
    return tmp_path / "backups" / "training.backup"
