"""A job ends, or has a child, while the kernel has I/O of its own under way: many times, each way.
After each the spill directory is empty, the disk's room is back, nothing is locked, the user's
files are as they were, what a child keeps is empty, and the next job has the whole directory to
itself. A job that goes on has the right bytes."""

import random
import signal
import time

import pytest

from real_disks import check_clean, end, kept_by
from real_jobs import STORES, Job

BLOCKS = 14  # of 4 MiB, with a budget of 32 MiB and 16 MiB of host memory
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT}
CHILDREN = ("fork", "vfork", "exec", "daemon")
KINDS = (*SIGNALS, "abort", *CHILDREN, "closerange")
WAYS = ("ext4", "xfs")


def alone(job):
    """The whole directory is this job's: others that died are no neighbours."""
    (found,) = job.stats()["store"]["measured"]
    assert found["sharers"] == 1, found
    assert found["written_bytes"] > 0, "nothing was spilled"


def by_signal(job, disk, kind):
    """In the middle of a churn, once the disk is seen at work; how much of it."""
    job.tell("churn 20")
    time.sleep(random.uniform(0, 0.01))
    late = time.monotonic() + 0.3
    while (flying := disk.in_flight()) == 0 and time.monotonic() < late:
        pass
    job.process.send_signal(SIGNALS[kind])
    assert job.wait() == -SIGNALS[kind], job.words()
    return flying


def by_abort(job, disk, _):
    said = job.must("act abort")
    assert job.wait() == -signal.SIGABRT
    return said.values.get("flying")


def by_child(job, disk, kind):
    """The child lives on while its parent goes on, and when it is killed."""
    said = job.must(f"act {kind}")
    try:
        if kind == "exec":
            late = time.monotonic() + 5
            while b"sleep" not in open(f"/proc/{said.pid}/cmdline", "rb").read():
                assert time.monotonic() < late, "no other program"
        elif kind == "daemon":
            assert job.wait() == 0, job.words()
        else:
            assert kept_by(said.pid, disk) == []
            job.must("churn 0.03")
            job.must("verify")
            job.process.kill()
            assert job.wait() == -signal.SIGKILL
        assert kept_by(said.pid, disk) == []
        check_clean(disk, f"the {kind}'s child, which lives,")
    finally:
        end(said.pid)
    return said.values.get("flying")


def by_closed_descriptors(job, disk):
    said = job.must(f"act closerange {disk.path}/data 900")
    gone_on = job.does("churn 0.05")
    seen = job.does("verify")
    own = sorted(disk.data.glob("by-number-*"))
    assert len(own) == said.files
    for file in own:
        assert file.read_bytes() == b"twelve bytes", file.name
        file.unlink()
    # I/O threads have numbers of their own.
    assert gone_on.errors == 0 and seen.kind == "ok" and seen.lost == 0, gone_on.text + seen.text
    assert job.ends(0)
    return said.values.get("flying")


def die(job, disk, kind):
    if kind in SIGNALS:
        return by_signal(job, disk, kind)
    if kind in CHILDREN:
        return by_child(job, disk, kind)
    if kind == "abort":
        return by_abort(job, disk, kind)
    return by_closed_descriptors(job, disk)


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=pytest.mark.quick if kind in ("SIGKILL", "fork") else [])
    for kind in KINDS])
def test_many_deaths(disk, many, kind):
    place = disk(WAYS[KINDS.index(kind) % 2], 160)
    flew = known = 0
    for number in range(many):
        store = STORES[number % 2]
        with Job(place.spill_path(), store, prefix=place.prefix()) as job:
            job.begun()
            job.must(f"make {BLOCKS}")
            alone(job)
            flying = die(job, place, kind)
            if flying is not None:
                known += 1
                flew += flying > 0
        check_clean(place, f"a job that ended by {kind}")
    with Job(place.spill_path(), prefix=place.prefix()) as job:
        job.begun()
        job.must(f"make {BLOCKS}")
        job.must("churn 0.6")  # the number of neighbours is asked each half second
        alone(job)
        job.must("verify")
        job.ends()
    check_clean(place, "a job that ended well")
    print(f"{kind}: {many} times, I/O in flight in {flew} of {known} where it was looked at")
    assert known == 0 or flew * 2 >= known, f"I/O was in flight in {flew} of {known} only"
