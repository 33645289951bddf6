"""Two ranks on one machine, under torchrun with gloo (test_nccl.py has NCCL): the bits of a run
with all the memory it wants, at half of it, with one spill directory for both."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess

import pytest

import directory_locks
import script_runs
from test_scripts_left_behind import open_file_bytes, wait_for, written_bytes

WORKER = pathlib.Path(__file__).with_name("worker.py")
RANKS = 2
TRAINING = ("ddp", "fsdp1", "fully_shard")
ENVIRONMENT = {"FIRN_GPU_DEVICES": str(RANKS), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


@dataclasses.dataclass
class Ranks:
    status: int
    text: str      # standard output and error of all
    lines: list    # per rank: [(case, what, value)]
    stats: list    # Firn's, of the processes that had a device

    def results(self, cases):
        """Per rank: what has to be the same in every run."""
        return [[line for line in lines if line[0] in cases and line[1] not in ("peak", "device")]
                for lines in self.lines]

    def most(self, case, what):
        """The largest figure of that name."""
        return max(int(line[2]) for lines in self.lines for line in lines
                   if line[:2] == (case, what))


def torchrun(paths, folder, arguments, ranks=RANKS):
    return [paths.python, "-m", "torch.distributed.run", "--standalone", "--log-dir",
            str(folder / "launcher"), "--nproc-per-node", str(ranks), str(WORKER), "--output",
            str(folder), *arguments]


def firn_run(paths, folder, dirs, budget, *options, host="32MiB"):
    return [paths.firn, "run", "--device", "software", "--gpu-memory",
            str(script_runs.DEVICE_MEMORY), "--budget", str(budget), "--host", host,
            *(word for each in dirs for word in ("--dir", str(each))),
            "--stats", str(folder / "stats-%p.json"), *options, "--"]


def launch(paths, folder, cases, environment, prefix=(), ranks=RANKS):
    command = [*prefix, *torchrun(paths, folder, cases, ranks)]
    environment = {**environment, **ENVIRONMENT, "FIRN_GPU_DEVICES": str(ranks)}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=script_runs.TIMEOUT_S)
    lines = []
    for rank in range(ranks):
        path = folder / f"rank{rank}.txt"
        said = path.read_text().splitlines() if path.exists() else []
        lines.append([tuple(line.split(" ", 2)) for line in said])
    stats = [json.loads(path.read_text()) for path in folder.glob("stats-*.json")]
    stats = sorted((each for each in stats if each["devices"]),
                   key=lambda each: each["devices"][0]["device"])  # the rank is the device
    return Ranks(done.returncode, done.stdout, lines, stats)


@pytest.fixture(scope="module")
def native(paths, tmp_path_factory):
    """Every case in one launch, with PyTorch's own allocator."""
    run = launch(paths, tmp_path_factory.mktemp("native"), [*TRAINING, "collectives"],
                 script_runs.native_environment(paths))
    assert run.status == 0, run.text
    # The ranks' parts differ (batches, shards), and nothing failed that Firn would then be excused.
    assert run.results(TRAINING)[0] != run.results(TRAINING)[1]
    assert not [line for lines in run.lines for line in lines if "Error" in line[2]], run.lines
    return run


def with_firn(paths, folder, dirs, cases, budget, *options):
    return launch(paths, folder, cases, script_runs.clean_environment(),
                  firn_run(paths, folder, dirs, budget, *options))


def check_same(run, native, cases, ranks=RANKS):
    assert run.status == 0, run.text
    assert run.results(cases) == native.results(cases), run.text
    assert all(run.results(cases)) and len(run.stats) == ranks
    for stats in run.stats:
        (device,) = stats["devices"]
        assert device["lost_blocks"] == 0
        assert device["spilled_bytes"] > 0 and device["faulted_bytes"] > 0
        assert stats["store"]["written_bytes"] > 0 and stats["store"]["read_bytes"] > 0


def check_nets(run):
    """Every rank's run was under script_runs.NETS, or --verify."""
    for stats in run.stats:
        script_runs.check_nets(script_runs.Run(run.status, run.text, 0, {}, stats))


def half_of(peak):
    return peak // 2 // script_runs.GRANULE * script_runs.GRANULE


@pytest.mark.parametrize("case", ["ddp", pytest.param("fsdp1", marks=pytest.mark.long)])
def test_bits_are_equal_at_half_the_memory(paths, native, spill_dir, tmp_path, case):
    peak = native.most(case, "peak")
    budget = half_of(peak)
    run = with_firn(paths, tmp_path, [spill_dir], [case], budget)
    check_same(run, native, [case])
    assert run.most("all", "device") <= budget < peak
    assert run.most(case, "peak") > budget
    for stats in run.stats:  # each counts the other (and whoever else uses this disk and machine)
        assert stats["host"]["sharers"] >= RANKS
        assert stats["store"]["measured"][0]["sharers"] >= RANKS


def test_each_rank_spills_to_a_directory_of_its_own(paths, native, spill_dir, tmp_path):
    dirs = [spill_dir / "first", spill_dir / "second"]
    for each in dirs:
        each.mkdir()
    budget = half_of(native.most("fully_shard", "peak"))
    run = with_firn(paths, tmp_path, dirs, ["fully_shard"], budget)
    for each in dirs:
        each.rmdir()
    check_same(run, native, ["fully_shard"])
    assert run.most("all", "device") <= budget
    for rank, stats in enumerate(run.stats):
        assert stats["devices"][0]["device"] == rank
        for number, said in enumerate(stats["store"]["measured"]):
            assert said["own"] is (number == rank)
            assert (said["written_bytes"] > 0) is (number == rank)


def test_adversarial(paths, native, spill_dir, tmp_path):
    """A use of memory that goes unseen is a crash: gloo's copies too."""
    cases = [*TRAINING, "collectives"]
    run = with_firn(paths, tmp_path, [spill_dir], cases, "4GiB", "--adversarial")
    check_same(run, native, cases)


def test_a_rank_killed_while_it_spills_leaves_nothing(paths, native, spill_dir, tmp_path):
    """(The fixture looks at the directory and at /dev/shm; torchrun ends the other rank.)"""
    command = [*firn_run(paths, tmp_path, [spill_dir], half_of(native.most("ddp", "peak"))),
               *torchrun(paths, tmp_path, ["--steps", "1000", "ddp"])]
    process = subprocess.Popen(command, env={**script_runs.clean_environment(), **ENVIRONMENT},
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace")
    pids = [tmp_path / f"rank{rank}.pid" for rank in range(RANKS)]
    try:
        wait_for(lambda: all(path.exists() and path.read_text() for path in pids), process)
        pids = [int(path.read_text()) for path in pids]
        wait_for(lambda: min(map(written_bytes, pids)) > (64 << 20), process)
        assert all(directory_locks.locked_by(pid, spill_dir) for pid in pids)
        assert min(open_file_bytes(pid, spill_dir) for pid in pids) > 0
        os.kill(pids[1], signal.SIGKILL)
        output = process.communicate(timeout=script_runs.TIMEOUT_S)[0]
    finally:
        process.terminate()  # torchrun then ends its ranks
        process.wait()
    assert process.returncode == 1 and "SIGKILL" in output, output
    assert not directory_locks.locked(spill_dir)
    for pid in pids:  # neither of them is there, nor what it held
        assert open_file_bytes(pid, spill_dir) == 0
        assert not pathlib.Path(f"/proc/{pid}").exists()
