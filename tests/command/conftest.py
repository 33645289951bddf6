"""The `firn` binary under test, run in a clean environment."""

import pathlib
import shutil
import subprocess
import tempfile

import pytest
from firn_command import ROOT, clean_environment, find_binary
from made_trace import BEGIN_NS, HEADER


# Half a minute each.
SLOW = ("test_calls.py", "test_simulate_large.py", "test_a_million_events")


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("long") is None and \
                item.path.name not in SLOW and item.name not in SLOW:
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


@pytest.fixture(scope="session")
def page_of(firn):
    """page_of(trace): the page's path, where the command said `says` and nothing else."""

    def make(trace, says=None):
        out = trace.with_suffix(".html")
        done = firn("report", str(trace), "-o", str(out))
        assert done.returncode == 0, done.stderr
        assert (says in done.stderr) if says else done.stderr == ""
        assert done.stdout == "" and not out.with_name(out.name + ".part").exists()
        return out

    return make


@pytest.fixture
def trace(tmp_path):
    """trace(rows): the trace of these, the first at time 0."""

    def write(*rows, name="job.csv"):
        path = tmp_path / name
        lines = (f"{BEGIN_NS + ns},{rest}\n" for ns, rest in rows)
        path.write_text(HEADER + "".join(lines))
        return path

    return write


@pytest.fixture
def spill_dir():
    """An empty directory on the disk that holds the repository; must be empty again at the end."""
    (ROOT / "build").mkdir(exist_ok=True)
    path = pathlib.Path(tempfile.mkdtemp(prefix="spill-", dir=ROOT / "build"))
    yield path
    left = sorted(str(each) for each in path.rglob("*"))
    shutil.rmtree(path)
    assert left == [], "files left behind"
