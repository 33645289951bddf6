"""Disks that fill up and come free again, are shut down by force, become read-only, are full by
quota, under a job: its bytes are right, or an error says why and which knob changes it, within
seconds. Afterwards nothing of it is there."""

import os
import pathlib
import threading
import time

import pytest

import real_disks
from real_disks import MIB, Unavailable, check_clean, set_immutable, tried
from real_jobs import IO, LOST, OUT_OF_MEMORY, STORES, Job, goes_on

EACH = [(kind, store) for kind in ("ext4", "xfs") for store in STORES]
MARKED = [pytest.param(*each, marks=pytest.mark.quick if each == EACH[0] else []) for each in EACH]


def job_on(disk, store="io_uring", **knobs):
    return Job(disk.spill_path(), store, prefix=disk.prefix(), **knobs).begun()


def takes_no_more(job, line, *why):
    """The error names the knobs; the cause was said when it came."""
    got = job.does(line)
    assert got.kind == "error" and got.status == OUT_OF_MEMORY, got.text
    for each in ("firn_dir", "firn_host", "firn_budget"):
        assert each in got.first, got.first
    for each in why:
        job.says(each)


def is_no_wrong_error(place, *answers):
    """Where a disk is dead or ill, each error names what it is about."""
    for got in answers:
        if got.errors:
            assert got.status in (LOST, OUT_OF_MEMORY, IO), got.text
            assert "firn_dir" in got.first or str(place.spill_path()) in got.first, got.first


@pytest.mark.parametrize("kind, store", MARKED)
def test_fills_up_and_comes_free_again(disk, kind, store):
    place = disk(kind, 320)
    with job_on(place, store) as job:
        job.must("make 20")
        for _ in range(3):
            job.must("churn 0.1")
            place.fill()
            takes_no_more(job, "make 60", str(place.spill_path()), "No space left on device")
            is_no_wrong_error(place, job.does("verify"), job.does("churn 0.2"))
            job.must("drop 8")
            goes_on(job, "verify", 4)
            place.come_free()
            goes_on(job, "make 1", 4)
            goes_on(job, "churn 0.1", 4)
            assert goes_on(job, "verify", 4).steps >= 12
            job.must("drop 100")
            job.must("make 20")
        job.must("verify")
        job.ends(3)  # it met errors
    check_clean(place)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_fills_up_while_blocks_leave(disk, kind):
    """Nothing waits for the test: the disk is full or not as it happens."""
    place = disk(kind, 320)
    with job_on(place, host="48MiB") as job:
        job.must("make 30")
        over = threading.Event()

        def fill_and_free():
            while not over.is_set():
                place.fill()
                over.wait(0.05)
                place.come_free()
                over.wait(0.05)

        filling = threading.Thread(target=fill_and_free)
        filling.start()
        try:
            churned = job.does("churn 3")
        finally:
            over.set()
            filling.join()
        assert churned.errors == 0 or churned.status in (OUT_OF_MEMORY, IO), churned.text
        goes_on(job, "verify")
        job.ends(3 if churned.errors else 0)
    check_clean(place)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_others_find_room_while_a_spill_file_grows(disk, kind):
    """The disk has less room than one step of growth, and far more than the job takes."""
    place = disk(kind, 320)
    place.fill(leave=150 * MIB)
    refused, over = [], threading.Event()

    def write():
        number = 0
        while not over.is_set():
            try:
                with open(place.data / "growing", "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, 16 << 10)
                number += 1
                time.sleep(0.001)
            except OSError as error:
                refused.append(error)
        assert number > 10

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for _ in range(3):
            with job_on(place) as job:
                job.must("make 20")
                job.must("verify")
                job.ends()
            place.sync()  # (ext4 gives back what was freed with its next commit)
    finally:
        over.set()
        writing.join()
    assert refused == [], f"{len(refused)} times: {refused[0]}"


@pytest.mark.parametrize("kind, store", MARKED)
def test_is_shut_down_by_force(disk, kind, store):
    """Every read and write fails from here on: after the patience each use is an error."""
    place = disk(kind)
    with job_on(place, store, io_patience="1s" if (kind, store) == EACH[-1] else "0s") as job:
        job.must("make 18")
        job.must("churn 0.1")
        job.tell("churn 0.5")
        time.sleep(0.05)
        try:
            place.shut_down()
        except Unavailable as why:
            pytest.skip(str(why))
        churned = job.answer("churn 0.5")
        begin = time.monotonic()
        seen = job.does("verify", 90)
        assert time.monotonic() - begin < 25
        assert churned.errors + seen.errors > 0, "a dead disk, and nothing said"
        is_no_wrong_error(place, churned, seen)
        job.ends(3)
    with Job(place.spill_path(), store, prefix=place.prefix()) as job:
        job.refused("firn_dir", str(place.spill_path()))
    place.mount_again()
    check_clean(place, "a job on a disk that died,", tolerance=1 << 20)


def test_one_of_two_is_shut_down(disk):
    """What is in the other one is there, and what comes goes there."""
    dead = disk("xfs")
    well = disk("ext4", beside=dead)
    with Job(f"{dead.spill_path()};{well.spill_path()}", prefix=dead.prefix(),
             block_mib=2, io_patience="0s") as job:
        job.begun()
        job.must("make 60")
        dead.shut_down()
        seen = job.does("verify", 120)
        end = time.monotonic() + 10  # (while its disk rests, what leaves has nowhere to go)
        while seen.errors > 30 and time.monotonic() < end:
            time.sleep(0.2)
            seen = job.does("verify", 120)
        assert 0 < seen.errors <= 30 and seen.status == LOST, seen.text
        assert str(dead.spill_path()) in seen.first, seen.first
        assert str(well.spill_path()) not in seen.first, seen.first
        job.must("drop 60", 60)
        goes_on(job, "make 60")
        goes_on(job, "verify")
        job.ends(3)
    check_clean(well)


def test_becomes_read_only(disk):
    """As ext4 does by itself when it finds an error of its own."""
    place = disk("ext4", options=["errors=remount-ro"])
    number = os.stat(place.seen).st_dev
    name = os.path.basename(os.path.realpath(
        f"/sys/dev/block/{os.major(number)}:{os.minor(number)}"))
    trigger = pathlib.Path(f"/sys/fs/ext4/{name}/trigger_fs_error")
    if not trigger.exists():
        pytest.skip(f"no {trigger}")
    with job_on(place, io_patience="0s") as job:
        job.must("make 18")
        with pytest.raises(Unavailable):  # a file is open for writing
            place.remount("ro")
        job.must("churn 0.1")
        trigger.write_text("x")
        churned, seen = job.does("churn 0.5"), job.does("verify", 90)
        is_no_wrong_error(place, churned, seen)
        job.must("drop 18")
        takes_no_more(job, "make 60", str(place.spill_path()))
        job.ends(3)
    assert list(place.spill.iterdir()) == []
    assert place.hashes() == place.user_files
    with Job(place.spill_path(), prefix=place.prefix()) as job:
        job.refused("firn_dir", "is not writable: Read-only file system")


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_is_mounted_read_only(disk, kind):
    place = disk(kind)
    place.remount("ro")
    with Job(place.spill_path(), prefix=place.prefix()) as job:
        job.refused("firn_dir", str(place.spill_path()), "Read-only file system")
    assert place.hashes() == place.user_files


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_becomes_immutable(disk, kind):
    """The spill file has no name: the job goes on. The next one is refused, until it may."""
    place = disk(kind)
    with job_on(place) as job:
        job.must("make 8")
        try:
            set_immutable(place.spill, True)
        except Unavailable as why:
            pytest.skip(str(why))
        try:
            job.must("make 10")
            job.must("churn 0.2")
            job.must("verify")
            with Job(place.spill_path(), prefix=place.prefix()) as other:
                other.refused("firn_dir", str(place.spill_path()), "is not writable")
        finally:
            set_immutable(place.spill, False)
        job.ends()
    check_clean(place)
    with job_on(place) as job:
        job.must("make 18")
        job.must("verify")
        job.ends()


def quota_of_btrfs(disk):
    place = disk("btrfs")
    path = place.path / "spill"
    place.spill.rmdir()
    place.inside(["btrfs", "subvolume", "create", path])
    place.inside(["btrfs", "quota", "enable", place.path])
    place.inside(["btrfs", "qgroup", "limit", "40M", path])
    place.sync()
    return place, lambda: place.inside(["btrfs", "qgroup", "limit", "none", path]), ()


def quota_of_xfs(disk):
    place = disk("xfs", options=["prjquota"])
    place.inside(["xfs_quota", "-x", "-c", f"project -s -p {place.spill_path()} 7", place.path])
    place.inside(["xfs_quota", "-x", "-c", "limit -p bhard=40m 7", place.path])
    return place, lambda: place.inside(
        ["xfs_quota", "-x", "-c", "limit -p bhard=0 7", place.path]), ()


def quota_of_ext4(disk):
    """Of a user: root is free of it."""
    user = 61_357
    place = disk("ext4", options=["usrquota"], make=["-O", "quota"])
    os.chown(place.spill, user, user)
    place.inside(["setquota", "-u", user, "0", "40M", "0", "0", place.path])
    return place, lambda: place.inside(
        ["setquota", "-u", user, "0", "0", "0", "0", place.path]), (
            "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups")


@pytest.mark.parametrize("kind", real_disks.KINDS)
def test_is_full_by_quota(disk, kind):
    made = {"btrfs": quota_of_btrfs, "xfs": quota_of_xfs, "ext4": quota_of_ext4}[kind]
    try:
        place, lift, prefix = made(disk)
    except Unavailable as why:
        pytest.skip(f"no quota on {kind} here: {why}")
    before = place.free_bytes()
    with Job(place.spill_path(), prefix=(*place.prefix(), *prefix)) as job:
        job.begun()
        job.must("make 8")
        takes_no_more(job, "make 60", str(place.spill_path()), "Disk quota exceeded")
        is_no_wrong_error(place, job.does("verify"))
        job.must("drop 8")
        goes_on(job, "verify", 4)
        lift()
        goes_on(job, "make 10")
        job.must("verify")
        job.ends(3)
    assert list(place.spill.iterdir()) == []
    assert place.hashes() == place.user_files
    end = time.monotonic() + real_disks.LATE_S
    while place.free_bytes() < before - 4 * MIB:
        assert time.monotonic() < end, "room is kept"
        place.sync()


def test_loop_devices_are_left_free(disk):
    """These tests' own: what they mount is gone with them."""
    place = disk("ext4")
    held = tried(["losetup", "--list", "--noheadings", "--output", "BACK-FILE"])
    assert str(place.image) in held
    place.close()
    end = time.monotonic() + 5
    while str(place.image) in tried(["losetup", "--list", "--noheadings", "--output",
                                     "BACK-FILE"]):
        assert time.monotonic() < end, "the loop device is held still"
        time.sleep(0.02)
