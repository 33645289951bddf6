"""Disks, and what this machine cannot do: said, and skipped."""

import os
import pathlib
import shutil
import tempfile

import pytest

import real_disks
import real_jobs


@pytest.fixture
def folder():
    """On the disk that holds the build: images and directories, gone with the test."""
    real_jobs.BUILD.mkdir(exist_ok=True)
    made = pathlib.Path(tempfile.mkdtemp(prefix="real-faults-", dir=real_jobs.BUILD))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def spill(folder):
    """A directory on the disk of the build, empty again after each job."""
    made = folder / "spill"
    made.mkdir(mode=0o700)
    yield made
    assert list(made.iterdir()) == []


@pytest.fixture
def disk(folder):
    """disk(kind, mib, ...): a Disk, or the test is skipped."""
    made = []

    def make(kind, mib=None, **options):
        own = folder / f"disk-{len(made)}"
        own.mkdir()
        try:
            made.append(real_disks.Disk(own, kind, mib, **options))
        except real_disks.Unavailable as why:
            pytest.skip(f"{kind}: {why}")
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def many():
    """How often a death is died, by FIRN_TEST_LENGTH: 10, 25 or 100 times."""
    return {"quick": 10, "long": 100}.get(os.environ.get("FIRN_TEST_LENGTH"), 25)
