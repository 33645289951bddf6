"""Scripts of tests/torch/scripts run on the software GPU: natively, and with Firn."""

import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import tempfile

import pytest

import script_runs

LEFT_BEHIND = "firn"


@pytest.fixture(scope="session")
def paths():
    found = script_runs.Paths.find()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="session")
def native(paths, tmp_path_factory):
    """native(script, *arguments, environment=None): the run with PyTorch's own allocator and all the memory it
    wants; each is run once in a session, by whichever of pytest's processes asks first."""
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent

    def run(script, *arguments, environment=None):
        key = hashlib.sha256(repr((script, arguments, environment)).encode()).hexdigest()[:16]
        folder = base / f"native-{key}"
        folder.mkdir(exist_ok=True)
        with open(folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = folder / "run.json"
            if not kept.exists():
                done = script_runs.run_native(paths, folder, script, *arguments,
                                              environment=environment)
                kept.write_text(json.dumps(dataclasses.asdict(done)))
            done = script_runs.Run(**json.loads(kept.read_text()))
        assert done.status == 0, done.text
        return done

    return run


@pytest.fixture
def with_firn(paths, tmp_path):
    """with_firn(script, *arguments, **of run_with_firn): the finished run."""

    def run(script, *arguments, **options):
        folder = pathlib.Path(tempfile.mkdtemp(dir=tmp_path))
        return script_runs.run_with_firn(paths, folder, script, *arguments, **options)

    return run


@pytest.fixture
def spill_dir():
    """An empty directory on the disk that holds the repository, empty again at the end; nor may
    anything of Firn's be in /dev/shm that was not there before."""
    build = script_runs.ROOT / "build"
    build.mkdir(exist_ok=True)
    path = pathlib.Path(tempfile.mkdtemp(prefix="spill-", dir=build))
    shared_before = shared_memory()
    yield path
    left = sorted(str(each) for each in path.rglob("*"))
    shutil.rmtree(path)
    assert left == [], "files left behind"
    assert shared_memory() <= shared_before, "shared memory left behind"


def shared_memory():
    return {path.name for path in pathlib.Path("/dev/shm").iterdir() if LEFT_BEHIND in path.name}
