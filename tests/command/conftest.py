"""The `firn` binary under test, run in a clean environment."""

import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def pytest_configure(config):
    config.addinivalue_line("markers", "quick: part of `tests/run.sh quick`")
    config.addinivalue_line("markers", "long: only with `tests/run.sh --long`")


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("long") is None:
            item.add_marker(pytest.mark.quick)


def find_binary():
    named = os.environ.get("FIRN_TEST_BINARY")
    if named:
        return named
    for place in (".venv/bin/firn", "build/allocator/command/firn"):
        if (ROOT / place).exists():
            return str(ROOT / place)
    raise FileNotFoundError("no firn: build it first, or name it in FIRN_TEST_BINARY")


def clean_environment():
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("FIRN_", "PYTORCH_"))}
    kept.pop("LD_PRELOAD", None)
    return kept


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
