"""Limits on a process, from its start or set later on: files, processes, addresses, mappings,
locked memory, forbidden system calls, cgroups, and a standard error that nobody reads. The job's
bytes are right, or an error names what is short, within seconds."""

import os
import pathlib
import shutil
import subprocess
import time

import pytest

from real_jobs import (DRIVER, HOST_OUT_OF_MEMORY, INVALID, NOT_SUPPORTED, OUT_OF_MEMORY, STORES,
                       Ended, Job, full_pipe, goes_on, limits)

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do that")


def whole_life(job, line="make 14"):
    """The first answer that is an error; "right": there was none; "others": it was ended by others
    than Firn. Either way it ends."""
    try:
        for what in (None, line, "churn 0.05", "verify"):
            got = job.does(what) if what else job.answer("the start")
            if got.kind != "ok":
                break
        else:
            job.ends()
            return "right"
        if what is None:
            assert job.wait() == 3, job.words()
        else:
            job.ends(how="quit")
        return got
    except Ended as ended:
        if ended.of_others():
            return "others"
        raise AssertionError(f"no clean error: {ended}") from None


CLEAN = (INVALID, DRIVER, OUT_OF_MEMORY, HOST_OUT_OF_MEMORY, NOT_SUPPORTED)


class Lives:
    """Lives under smaller and larger limits: each right or a clean error; the largest right."""

    def __init__(self):
        self.right, self.errors, self.others, self.last = 0, [], 0, None

    def add(self, job):
        self.last = got = whole_life(job)
        if got == "right":
            self.right += 1
        elif got == "others":
            self.others += 1
        else:
            assert got.status in CLEAN and len(got.first) > 20, got.text
            self.errors.append(got.first)

    def judge(self):
        assert self.last == "right", f"not even under the largest: {self.last}"
        assert self.errors or self.others, "the limit was never met"
        print(f"{self.right} right, {self.others} ended by others than Firn, {len(self.errors)} "
              f"errors: {set(self.errors)}")


@pytest.mark.parametrize("store", STORES)
def test_few_descriptors(spill, store):
    lives = Lives()
    for number in range(8, 60, 4):
        with Job(spill, store, preexec=limits(NOFILE=number)) as job:
            lives.add(job)
    lives.judge()


@pytest.mark.parametrize("store", STORES)
def test_no_descriptor_is_left(spill, store):
    """The program uses them up once it runs."""
    with Job(spill, store, preexec=limits(NOFILE=256)) as job:
        job.begun()
        job.must("plainly files 0")
        made = job.does("make 14")
        assert made.kind == "ok" or made.status in CLEAN, made.text
        job.must("plainly files back")
        goes_on(job, "make 14")
        job.must("act files 0")
        job.must("churn 0.2")
        job.must("verify")
        job.ends()


@ROOT_ONLY
@pytest.mark.parametrize("store", STORES)
def test_few_processes(folder, store):
    """Threads are processes, to the kernel. Root is free of that limit."""
    user = 61_358
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv")
    prefix = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups",
              "--bounding-set=-all")
    own = folder / "own"
    own.mkdir(mode=0o700)
    os.chown(own, user, user)
    folder.chmod(0o755)
    lives = Lives()
    for number in (1, 2, 3, 4, 5, 6, 8, 10, 14, 20):
        with Job(own, store, prefix=prefix, preexec=limits(NPROC=number)) as job:
            lives.add(job)
    lives.judge()
    assert list(own.iterdir()) == []


@pytest.mark.parametrize("store", STORES)
def test_few_addresses(spill, store):
    """RLIMIT_AS. The software GPU reserves addresses of its own, too."""
    lives = Lives()
    for mib in (64, 400, 1_600, 6_400, 25_600, 102_400, 409_600, 1_638_400, 6_553_600, 80_000_000):
        with Job(spill, store, preexec=limits(AS=mib << 20)) as job:
            lives.add(job)
    lives.judge()


@ROOT_ONLY
@pytest.mark.parametrize("store", [None, "threads"])
def test_no_locked_memory(spill, store):
    prefix = ("setpriv", "--bounding-set=-ipc_lock,-sys_resource",
              "--inh-caps=-ipc_lock,-sys_resource") if shutil.which("setpriv") else ()
    if not prefix:
        pytest.skip("no setpriv")
    with Job(spill, store, prefix=prefix, preexec=limits(MEMLOCK=0)) as job:
        job.begun()
        job.must("make 14")
        job.must("churn 0.2")
        job.must("verify")
        if store is None:
            assert "RLIMIT_MEMLOCK" in job.stats()["store"]["why"]
        job.ends()


def limit_of_mappings():
    try:
        return int(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return 0


@pytest.mark.parametrize("left", [0, 20, 200])
@pytest.mark.parametrize("store", STORES)
def test_few_mappings(spill, store, left):
    """The program has as many as the kernel allows (vm.max_map_count), but a few."""
    if not 0 < limit_of_mappings() <= 1_000_000:
        pytest.skip("vm.max_map_count is too large to be met")
    for _ in range(1 if left else 4):  # (where none is left, each life ends elsewhere)
        life_with_few_mappings(spill, store, left)


def life_with_few_mappings(spill, store, left):
    with Job(spill, store) as job:
        job.begun()
        job.must("make 10")
        job.must("churn 0.2")  # the software GPU's threads, each of which wants mappings, are there
        job.must(f"act maps {left}")
        try:
            answers = [job.does(line) for line in ("make 10", "churn 0.2", "verify")]
        except Ended as ended:
            if left == 0 and ended.of_others():
                return
            raise
        for got in answers:
            assert got.kind == "ok" or got.status in CLEAN, got.text
            assert got.lost == 0
        stops = "Firn stops moving blocks"  # an unmap refused, or no memory in the middle
        if any(got.status == DRIVER or stops in got.first for got in answers):
            job.says(stops)
            job.ends(how="quit")
            return
        job.must("plainly maps back")
        goes_on(job, "verify")
        goes_on(job, "churn 0.1")
        job.must("verify")
        job.ends()


CALLS = ("io_uring_setup", "io_uring_enter", "io_uring_register")


@pytest.mark.parametrize("forbidden", [CALLS, CALLS[:1], CALLS[1:2], CALLS[2:]],
                         ids=["all", "setup", "enter", "register"])
@pytest.mark.parametrize("when", ["before", "at-rest", "in-flight"])
def test_io_uring_is_forbidden(spill, forbidden, when):
    words = " ".join(forbidden)
    with Job(spill, None, forbid=forbidden if when == "before" else ()) as job:
        job.begun()
        if when == "at-rest":
            job.must(f"plainly forbid {words}")
        job.must("make 14")
        for _ in range(3 if when == "in-flight" else 1):
            if when == "in-flight":
                job.must(f"act forbid {words}")
            job.must("churn 0.1")
            job.must("verify")
        store = job.stats()["store"]
        assert store["read_bytes"] > 0
        if "io_uring_enter" in forbidden or when == "before" and "io_uring_setup" in forbidden:
            assert store["kind"] == "threads" and "io_uring" in store["why"], store
        job.ends()


def cgroups(controller):
    """Folders in which a child group with that controller's limit may be made."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        number, names, path = line.split(":", 2)
        if controller in names.split(","):
            yield pathlib.Path(f"/sys/fs/cgroup/{controller}") / path.lstrip("/")
        elif number == "0":
            yield pathlib.Path("/sys/fs/cgroup") / path.lstrip("/")


@pytest.fixture
def group():
    """group(controller, file, value): the folder of a new cgroup with that limit."""
    made = []

    def make(controller, limit, value):
        for parent in cgroups(controller):
            own = parent / f"firn-real-faults-{os.getpid()}-{len(made)}"
            try:
                own.mkdir()
            except OSError:
                continue
            made.append(own)
            if (own / limit).exists():
                (own / limit).write_text(str(value))
                return own
        pytest.skip(f"no cgroup with {limit} can be made here (root, a writable /sys/fs/cgroup)")

    yield make
    for own in reversed(made):
        for _ in range(200):
            try:
                own.rmdir()
                break
            except OSError:
                time.sleep(0.01)


def joins(own):
    def join():
        (own / "cgroup.procs").write_text(str(os.getpid()))

    return join


@pytest.mark.parametrize("store", STORES)
def test_few_processes_of_a_cgroup(spill, group, store):
    own, lives = group("pids", "pids.max", "max"), Lives()
    for number in (1, 2, 3, 4, 5, 6, 8, 10, 14, 40):
        (own / "pids.max").write_text(str(number))
        with Job(spill, store, preexec=joins(own)) as job:
            lives.add(job)
    lives.judge()


@pytest.mark.parametrize("store", STORES)
def test_processes_of_a_cgroup_run_out_later(spill, group, store):
    """No thread can be started from here on: what runs goes on."""
    own = group("pids", "pids.max", "max")
    with Job(spill, store, preexec=joins(own)) as job:
        job.begun()
        job.must("make 12")
        job.must("churn 0.2")
        (own / "pids.max").write_text("1")
        try:
            job.must("churn 0.2")
            made = job.does("make 4")
            assert made.kind == "ok" or made.status in CLEAN, made.text
            job.must("verify")
        except Ended as ended:
            assert ended.of_others(), str(ended)
            return
        (own / "pids.max").write_text("max")
        goes_on(job, "make 2")
        job.must("verify")
        job.ends()


def troubled(job):
    """Something to say about: the spill file can grow no more."""
    job.begun()
    job.must("make 8")
    begin = time.monotonic()
    assert job.does("make 40").status == OUT_OF_MEMORY
    job.must("drop 20")
    goes_on(job, "churn 0.2")
    job.must("verify")
    for task in pathlib.Path(f"/proc/{job.pid}/task").iterdir():
        waits = (task / "wchan").read_text()
        assert "writ" not in waits, f"{(task / 'comm').read_text()} waits in {waits}"
    job.ends(3, timeout_s=10)
    assert time.monotonic() - begin < 12


@pytest.mark.quick
def test_nobody_reads_standard_error(spill):
    reading, writing = full_pipe()
    try:
        with Job(spill, stderr=writing, store_size="24MiB") as job:
            troubled(job)
    finally:
        os.close(reading)
        os.close(writing)


def test_who_reads_standard_error_is_gone(spill):
    """Each write is EPIPE; the signal of that name ends nobody."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with Job(spill, stderr=writing, store_size="24MiB") as job:
            troubled(job)
    finally:
        os.close(writing)


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
def test_standard_error_takes_nothing(spill, closed):
    with Job(spill, shell=closed, store_size="24MiB") as job:
        troubled(job)


def test_a_file_of_the_programs_in_place_of_standard_error(spill, folder):
    """It is closed at the start, so that the program's first file gets its number."""
    mine = folder / "mine"
    with Job(spill, shell="2>&-", store_size="24MiB", forbid=[mine]) as job:
        job.begun()
        job.must("make 8")
        assert job.does("make 40").status == OUT_OF_MEMORY
        job.must("drop 20")
        goes_on(job, "verify")
        job.ends(3)
    assert mine.read_bytes() == b"twelve bytes"


def test_it_was_built_here():
    """What these tests drive is Firn's own library."""
    from real_jobs import BUILD, PROGRAM
    linked = subprocess.run(["ldd", PROGRAM], capture_output=True, text=True, check=True).stdout
    found = [line.split()[2] for line in linked.splitlines() if "libfirn.so" in line]
    assert [os.path.dirname(os.path.realpath(path)) for path in found] \
        == [os.path.realpath(BUILD / "allocator")]
