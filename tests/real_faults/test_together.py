"""Eight jobs in one directory at once, of which one is killed, one after another: the bytes of the
others are right, each counts its neighbours, and what the dead one had is free."""

import os
import random
import signal
import time

import pytest

import real_disks
from real_disks import MIB, check_clean
from real_jobs import OUT_OF_MEMORY, STORES, Job, descriptors_of

JOBS = 8


class Together:
    """Jobs on one disk, ended with the test."""

    def __init__(self, place):
        self.place, self.jobs = place, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for job in self.jobs:
            job.__exit__()

    def add(self, **knobs):
        number = len(self.jobs)
        self.jobs.append(Job(self.place.spill_path(), STORES[number % 2], block_mib=2,
                             prefix=self.place.prefix(), budget="16MiB", **knobs))

    def all(self, line):
        for job in self.jobs:
            job.tell(line)
        return [job.answer(line, 60) for job in self.jobs]

    def count_each_other(self):
        """Users of the disk as each job knows them: a job looks again with its I/O, at most once in
        half a second, so that a count may be an old one at first."""
        end = time.monotonic() + real_disks.LATE_S
        while True:
            counted = [job.stats()["store"]["measured"][0]["sharers"] for job in self.jobs]
            if set(counted) == {len(self.jobs)} or time.monotonic() > end:
                return counted
            for got in self.all("verify"):
                assert got.kind == "ok", got.text


def held_by(job, place):
    """Bytes of that disk that the job's spill file has."""
    files = {}
    for each, target in descriptors_of(job.pid):
        if str(place.spill_path()) in target:
            found = os.stat(each)
            files[found.st_ino] = found.st_blocks * 512
    return sum(files.values())


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_eight_jobs_and_one_is_killed(disk, kind):
    place = disk(kind, 600)
    with Together(place) as together:
        for _ in range(JOBS):
            together.add()
        for job in together.jobs:
            job.begun()
        for got in together.all("make 24"):
            assert got.kind == "ok", got.text
        for _ in range(2 if os.environ.get("FIRN_TEST_LENGTH") != "long" else 6):
            for job in together.jobs:
                job.tell("churn 0.7")
            time.sleep(random.uniform(0.05, 0.5))
            victim = together.jobs.pop(random.randrange(len(together.jobs)))
            victim.process.send_signal(signal.SIGKILL)
            assert victim.wait() == -signal.SIGKILL
            victim.__exit__()
            for job in together.jobs:
                got = job.answer("churn 0.7", 60)
                assert got.kind == "ok" and got.lost == 0, got.text
            for got in together.all("verify"):
                assert got.kind == "ok" and got.steps == 24, got.text
            own = sum(held_by(job, place) for job in together.jobs)
            assert place.free_at_first - place.free_bytes() - own < MIB, "the dead one keeps room"
            assert together.count_each_other() == [len(together.jobs)] * len(together.jobs)
        for got in together.all("end"):
            assert got.kind == "ok", got.text
        assert [job.wait() for job in together.jobs] == [0] * len(together.jobs)
    check_clean(place, "eight jobs")


def test_eight_jobs_on_a_disk_that_is_too_small(disk):
    """Each is out of memory where there is no room, and none disturbs another."""
    place = disk("ext4", 160)
    place.fill(leave=100 * MIB)
    with Together(place) as together:
        for _ in range(JOBS):
            together.add()
        for job in together.jobs:
            job.begun()
        made = together.all("make 60")
        for got in made:
            assert got.kind == "ok" or got.status == OUT_OF_MEMORY, got.text
        assert any(got.kind == "error" for got in made)
        for got in together.all("drop 12") + together.all("verify"):
            assert got.kind == "ok", got.text
        assert [job.ends().kind for job in together.jobs] == ["ok"] * JOBS
    (place.seen / "filler").unlink()
    end = time.monotonic() + real_disks.LATE_S
    while place.free_bytes() < place.free_at_first - MIB:
        assert time.monotonic() < end, "room is kept"
        place.sync()
    assert place.hashes() == place.user_files and list(place.spill.iterdir()) == []
