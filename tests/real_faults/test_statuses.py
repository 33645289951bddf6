"""A job that lost bytes does not end as if all had been well: whoever looks at nothing but its exit
status, and a program that looks at no answer, are told. Somebody else writes over the spill file
here, which has no name: by /proc."""

import mmap
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from real_jobs import BUILD, GPU, LOST, STORES, Job, descriptors_of

BLOCKS = 24  # of 4 MiB, with a budget of 32 MiB and 16 MiB of host memory
SAID = "firn: LOST blocks (earlier lines name them): "
PRELOAD = BUILD / "allocator/preload/libfirn_preload.so"


def spoil(pid, spill):
    """A page of each MiB of that process's spill files is other bytes: of every slot. (By direct
    I/O: the page cache would collide with the job's own.)"""
    other, size = mmap.mmap(-1, 4096), 0
    other.write(b"other bytes " * 341)
    for each, target in descriptors_of(pid):
        if not target.startswith(f"{spill}/") or not each.is_file():
            continue
        file = os.open(each, os.O_RDWR | os.O_DIRECT)
        try:
            size = os.fstat(file).st_size
            for at in range(0, size, 1 << 20):
                assert os.pwrite(file, other, at) == len(other)
        finally:
            os.close(file)
    assert size > 32 << 20, "nothing was spilled"


def lost_of(text):
    """How many it said at its end; each was said by itself before."""
    found = re.search(re.escape(SAID) + r"(\d+)$", text, re.M)
    assert found, text
    return int(found.group(1))


@pytest.mark.quick
@pytest.mark.parametrize("store", STORES)
def test_a_program_that_hides_a_loss_has_status_1(spill, store):
    """By the C API: it ends with exit(0)."""
    with Job(spill, store).begun() as job:
        job.must(f"make {BLOCKS}")
        spoil(job.pid, spill)
        got = job.does("verify")
        assert (got.kind, got.status) == ("error", LOST), got.text
        assert "lost" in got.first and got.lost > 0
        job.tell("leave")
        assert job.wait() == 1, job.words()
        assert lost_of(job.words()) == got.lost
        assert job.words().count(SAID) == 1


@pytest.mark.parametrize("store", STORES)
def test_a_status_of_its_own_stays(spill, store):
    with Job(spill, store).begun() as job:
        job.must(f"make {BLOCKS}")
        spoil(job.pid, spill)
        assert job.does("verify").status == LOST
        job.ends(status=3, how="quit")
        assert lost_of(job.words()) > 0


@pytest.mark.quick
@pytest.mark.parametrize("store", STORES)
def test_who_lost_nothing_has_status_0(spill, store):
    with Job(spill, store).begun() as job:
        job.must(f"make {BLOCKS}")
        job.must("verify")
        job.tell("leave")
        assert job.wait() == 0, job.words()
        assert "LOST" not in job.words()


def test_what_was_freed_first_is_no_loss(spill):
    """Its bytes were spoilt, too; nobody wanted them."""
    with Job(spill).begun() as job:
        job.must(f"make {BLOCKS}")
        spoil(job.pid, spill)
        job.must(f"drop {BLOCKS}")
        job.must("make 2")
        job.must("verify")
        job.tell("leave")
        assert job.wait() == 0, job.words()
        assert "LOST" not in job.words()


@pytest.fixture(scope="module")
def keeper(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    if not PRELOAD.exists():
        pytest.skip(f"{PRELOAD} is not built")
    program = tmp_path_factory.mktemp("keeper") / "keeper"
    source = pathlib.Path(__file__).with_name("keeper.c")
    subprocess.run([compiler, "-O1", "-o", program, source, "-ldl"], check=True)
    return program


def run_keeper(keeper, spill, store, status, spoils):
    """(what it printed, its standard error, its status) with the library in front of the driver."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FIRN_", "LD_"))}
    environment = {**kept, "LD_PRELOAD": str(PRELOAD), "LD_LIBRARY_PATH": str(GPU.parent),
                   "FIRN_BUDGET": "32MiB", "FIRN_HOST": "16MiB", "FIRN_DIR": str(spill),
                   "FIRN_STORE": store, "FIRN_TEST_ALLOW_TMPFS": "1", "FIRN_GPU_MEMORY": "64MiB"}
    with subprocess.Popen([keeper, str(BLOCKS), "4", str(status)], env=environment, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        ready = process.stdout.readline()
        if ready == "ready\n" and spoils:
            spoil(process.pid, spill)
        out, err = process.communicate("\n", timeout=60)
    assert ready == "ready\n", (process.returncode, err)
    counts = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", out)}
    assert counts["wrong"] == 0 and sum(counts.values()) == BLOCKS, (out, err)
    return counts, err, process.returncode


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("own, ends", [pytest.param(0, 1, marks=pytest.mark.quick), (5, 5)])
def test_of_a_program_that_knows_no_firn(keeper, spill, store, own, ends):
    """What it reads of a lost block is an error; it looks at none, and its status tells."""
    counts, err, status = run_keeper(keeper, spill, store, own, spoils=True)
    assert counts["refused"] > 0 and status == ends, err
    assert lost_of(err) == counts["refused"], (counts, err)


@pytest.mark.parametrize("store", STORES)
def test_a_program_that_knows_no_firn_and_lost_nothing(keeper, spill, store):
    counts, err, status = run_keeper(keeper, spill, store, 0, spoils=False)
    assert (counts["right"], status) == (BLOCKS, 0), err
    assert "LOST" not in err
