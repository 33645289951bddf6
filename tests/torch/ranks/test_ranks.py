"""Two ranks on one machine, under torchrun with gloo: the bits of a run with all the memory it wants,
at half of it, with one spill directory for both."""

import dataclasses
import json
import pathlib
import subprocess

import pytest

import script_runs

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
        return max(int(line[2]) for lines in self.lines for line in lines if line[:2] == (case, what))


def launch(places, folder, cases, environment, prefix=()):
    command = [*prefix, places.python, "-m", "torch.distributed.run", "--standalone",
               "--nproc-per-node", str(RANKS), str(WORKER), "--output", str(folder), *cases]
    done = subprocess.run(command, env={**environment, **ENVIRONMENT}, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", timeout=script_runs.TIMEOUT_S)
    lines = []
    for rank in range(RANKS):
        path = folder / f"rank{rank}.txt"
        said = path.read_text().splitlines() if path.exists() else []
        lines.append([tuple(line.split(" ", 2)) for line in said])
    stats = [json.loads(path.read_text()) for path in folder.glob("stats-*.json")]
    return Ranks(done.returncode, done.stdout, lines, [each for each in stats if each["devices"]])


@pytest.fixture(scope="module")
def native(places, tmp_path_factory):
    """Every case in one launch, with PyTorch's own allocator."""
    run = launch(places, tmp_path_factory.mktemp("native"), [*TRAINING, "collectives"],
                 script_runs.native_environment(places))
    assert run.status == 0, run.text
    # The ranks' parts differ (batches, shards), and nothing failed that Firn would then be excused.
    assert run.results(TRAINING)[0] != run.results(TRAINING)[1]
    assert not [line for lines in run.lines for line in lines if "Error" in line[2]], run.lines
    return run


def with_firn(places, folder, spill_dir, cases, budget, *options, host="32MiB"):
    prefix = [places.firn, "run", "--device", "software", "--gpu-memory",
              str(script_runs.DEVICE_MEMORY), "--budget", str(budget), "--host", host,
              "--dir", str(spill_dir), "--stats", str(folder / "stats-%p.json"), *options, "--"]
    return launch(places, folder, cases, script_runs.clean_environment(), prefix)


def check_same(run, native, cases):
    assert run.status == 0, run.text
    assert run.results(cases) == native.results(cases), run.text
    assert all(run.results(cases)) and len(run.stats) == RANKS
    for stats in run.stats:
        (device,) = stats["devices"]
        assert device["lost_blocks"] == 0
        assert device["spilled_bytes"] > 0 and device["faulted_bytes"] > 0
        assert stats["store"]["written_bytes"] > 0 and stats["store"]["read_bytes"] > 0


@pytest.mark.parametrize("case", [
    "ddp", "fully_shard", pytest.param("fsdp1", marks=pytest.mark.long)])
def test_bits_are_equal_at_half_the_memory(places, native, spill_dir, tmp_path, case):
    peak = native.most(case, "peak")
    budget = peak // 2 // script_runs.GRANULE * script_runs.GRANULE
    run = with_firn(places, tmp_path, spill_dir, [case], budget)
    check_same(run, native, [case])
    assert run.most("all", "device") <= budget < peak
    assert run.most(case, "peak") > budget


def test_adversarial(places, native, spill_dir, tmp_path):
    """A use of memory that goes unseen is a crash: gloo's copies too."""
    cases = [*TRAINING, "collectives"]
    run = with_firn(places, tmp_path, spill_dir, cases, "4GiB", "--adversarial")
    check_same(run, native, cases)
