"""The `firn` binary under test, run in a clean environment."""

import pathlib
import shutil
import subprocess
import tempfile

import pytest
from firn_command import ROOT, clean_environment, find_binary


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("long") is None:
            item.add_marker(pytest.mark.quick)


@pytest.fixture(scope="session")
def firn():
    """firn(*arguments, environment={}, **subprocess.run's): the completed process, as text."""
    binary = find_binary()

    def run(*arguments, environment=None, **options):
        return subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=120,
                              env={**clean_environment(), **(environment or {})},
                              errors="surrogateescape", **options)

    return run


@pytest.fixture
def spill_dir():
    """An empty directory on the disk that holds the repository; must be empty again at the end."""
    (ROOT / "build").mkdir(exist_ok=True)
    path = pathlib.Path(tempfile.mkdtemp(prefix="spill-", dir=ROOT / "build"))
    yield path
    left = sorted(str(each) for each in path.rglob("*"))
    shutil.rmtree(path)
    assert left == [], "files left behind"
