"""`firn run --trace FILE` beside the events: one iteration of the job, for `firn simulate`."""

import csv
import dataclasses
import json
import subprocess

import pytest

from script_runs import clean_environment

MIB = 1 << 20
LAYERS = 24
# Every operator is written out: two per layer, a sum, and one more per layer.
PLAIN = f"""
import torch
torch.manual_seed(0)
with torch.no_grad():
    weights = [torch.randn(1024, 1024, device="cuda") for _ in range({LAYERS})]
    for step in range(8):
        x = weights[0]
        for weight in weights:
            product = torch.mm(x, weight)
            x = torch.relu(product)
            del product
        total = x.sum()
        del x, total
        for weight in weights:
            weight.mul_(0.5)
"""
ONCE = """
import torch
x = torch.ones(1 << 20, device="cuda")
print("sum", float((x + 1).sum()), flush=True)
"""


@dataclasses.dataclass
class Recorded:
    prefix: str
    kernels: list
    tensors: dict  # by id

    def bytes(self, kind):
        return sum(int(each["bytes"]) for each in self.tensors.values() if each["kind"] == kind)

    def names(self):
        return [kernel["name"] for kernel in self.kernels]


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def read(prefix):
    return Recorded(str(prefix), rows(f"{prefix}.kernels.csv"),
                    {row["tensor"]: row for row in rows(f"{prefix}.tensors.csv")})


@pytest.fixture
def simulated(paths):
    def run(recorded, *words):
        command = [paths.firn, "simulate", recorded.prefix, *map(str, words), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120,
                              env=clean_environment())
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)
    return run


@pytest.mark.quick
def test_every_operator_of_one_iteration(with_firn, simulated, tmp_path):
    run = with_firn(PLAIN, budget="4GiB", options=["--trace", tmp_path / "job.csv"])
    assert run.status == 0, run.text
    assert "firn:" not in run.text
    recorded = read(tmp_path / "job")
    names = recorded.names()
    assert sorted(names) == sorted(["aten::mm", "aten::relu"] * LAYERS + ["aten::sum"] +
                                   ["aten::mul_"] * LAYERS)
    # Weights last; two results per layer do not. The sum is small.
    assert recorded.bytes("persistent") == LAYERS * 4 * MIB
    assert recorded.bytes("transient") - 4 == LAYERS * 2 * 4 * MIB
    for kernel in recorded.kernels:
        inputs, outputs = kernel["inputs"].split(), kernel["outputs"].split()
        assert len(outputs) == 1
        assert int(kernel["duration_ns"]) > 1
        if kernel["name"] == "aten::mm":
            assert len(inputs) in (1, 2)  # the first layer squares its weight
        if kernel["name"] == "aten::mul_":
            assert inputs == outputs
    peak = run.device()["peak_allocated_bytes"]
    whole = simulated(recorded, "--gpu-memory", "1GiB")
    assert whole["bytes_spilled"] == 0
    assert whole["peak_allocated_bytes"] == pytest.approx(peak, rel=0.1)
    half = simulated(recorded, "--gpu-memory", peak // 2)
    assert half["bytes_spilled"] > 0


@pytest.mark.parametrize("script, arguments", [
    pytest.param("gpt_adamw.py", ("--steps", 4, "--layers", 4), marks=pytest.mark.quick),
    ("lstm.py", ("--steps", 4)),
    ("autocast_accumulation.py", ("--steps", 4)),
    ("dataloader_pinned.py", ("--steps", 4)),
])
def test_what_the_job_needs(with_firn, simulated, tmp_path, script, arguments):
    run = with_firn(script, *arguments, budget="4GiB", options=["--trace", tmp_path / "job.csv"])
    assert run.status == 0, run.text
    assert "firn:" not in run.text
    recorded = read(tmp_path / "job")
    peak = run.device()["peak_allocated_bytes"]
    whole = simulated(recorded, "--gpu-memory", "4GiB")
    assert whole["peak_allocated_bytes"] == pytest.approx(peak, rel=0.15)
    # Four steps and more are in the run; the device had only one thing to do at a time.
    assert 0.01 * run.seconds / 4 < whole["ideal_s"] < run.seconds / 4
    half = simulated(recorded, "--gpu-memory", peak // 2)
    assert half["bytes_spilled"] > 0
    assert half["steady_s"] >= whole["steady_s"]  # all that moves may be hidden


def test_the_same_is_recorded_while_blocks_spill(with_firn, tmp_path, spill_dir):
    arguments = ("--steps", 4, "--layers", 4)
    free = with_firn("gpt_adamw.py", *arguments, budget="4GiB",
                     options=["--trace", tmp_path / "free.csv"])
    short = with_firn("gpt_adamw.py", *arguments, budget=free.budget(0.5), dirs=[spill_dir],
                      options=["--trace", tmp_path / "short.csv"])
    assert free.status == short.status == 0, free.text + short.text
    assert short.device()["stall_s"] > 0
    recorded = read(tmp_path / "free"), read(tmp_path / "short")
    assert recorded[0].names() == recorded[1].names()
    for kind in ("persistent", "transient"):
        assert recorded[0].bytes(kind) == recorded[1].bytes(kind)


@pytest.mark.quick
def test_nothing_repeats(with_firn, simulated, tmp_path):
    """Everything is one iteration, and a line says so. %p is the process."""
    run = with_firn(ONCE, budget="4GiB", options=["--trace", tmp_path / "job-%p.csv"])
    assert run.status == 0, run.text
    (line,) = [line for line in run.text.splitlines() if line.startswith("firn:")]
    assert "Firn saw no iteration repeat" in line
    (found,) = tmp_path.glob("job-*.kernels.csv")
    recorded = read(str(found).removesuffix(".kernels.csv"))
    assert "aten::add" in recorded.names()
    assert simulated(recorded, "--gpu-memory", "1GiB")["ideal_s"] > 0


@pytest.mark.quick
def test_a_crash_leaves_no_files(with_firn, tmp_path):
    for name in ("job.tensors.csv", "job.kernels.csv"):
        (tmp_path / name).write_text("of an earlier run")
    run = with_firn(ONCE + "import os; os.abort()", budget="4GiB",
                    options=["--trace", tmp_path / "job.csv"])
    assert run.status != 0
    assert sorted(path.name for path in tmp_path.glob("job*")) == ["job.csv"]


TWO_DEVICES = """
import torch
with torch.no_grad():
    for device, size in ((0, 1024), (1, 512)):
        weights = [torch.ones(size, size, device=f"cuda:{device}") for _ in range(8)]
        for step in range(8):
            for weight in weights:
                weight.mul_(0.5)
        torch.cuda.synchronize(device)
"""


def test_each_device_has_files_of_its_own(with_firn, tmp_path):
    run = with_firn(TWO_DEVICES, budget="4GiB", options=["--trace", tmp_path / "job.csv"],
                    environment={"FIRN_GPU_DEVICES": "2"})
    assert run.status == 0, run.text
    for prefix, bytes_each in ((tmp_path / "job", 4 * MIB), (tmp_path / "job-device1", MIB)):
        recorded = read(prefix)
        assert recorded.names() == ["aten::mul_"] * 8
        assert recorded.bytes("persistent") == 8 * bytes_each
