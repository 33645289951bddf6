"""bench/jobs: whole training steps on fake tensors, beside the same steps run for real; and what is
made of them."""

import csv
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIRN = os.environ.get("FIRN_TEST_BINARY", str(ROOT / "build/allocator/command/firn"))
sys.path.append(str(ROOT / "bench/jobs"))


@pytest.fixture(scope="module")
def cases():
    done = subprocess.run([sys.executable, str(ROOT / "tests/bench/jobs_cases.py")],
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["llama", "gpt", "resnet"])
def test_the_recorded_peak_is_the_measured_one(cases, name):
    found = cases[name]
    assert found["plain"]["peak_bytes"] == pytest.approx(found["measured"], rel=0.03)


def test_other_ways_take_less_memory_and_more_time(cases):
    plain = cases["llama"]["plain"]
    for way in ("recompute", "save-on-cpu"):
        other = cases["llama"][way]
        assert other["persistent_bytes"] == plain["persistent_bytes"]
        assert other["peak_bytes"] < plain["peak_bytes"]
        assert other["seconds"] > plain["seconds"]
        assert other["kernels"] > plain["kernels"]


def test_shards_hold_a_part_and_reduce(cases):
    whole, part = cases["llama"]["plain"], cases["shards"]["plain"]
    assert 0.45 < part["persistent_bytes"] / whole["persistent_bytes"] < 0.6
    assert cases["shards"]["all_reduces"] == 3 * 4  # each layer: two forward, two backward


def write(prefix, kernels, sizes, persistent):
    with open(f"{prefix}.tensors.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("tensor", "bytes", "kind"))
        rows.writerows((each, size, "persistent" if each in persistent else "transient")
                       for each, size in sizes.items())
    with open(f"{prefix}.kernels.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("kernel", "name", "duration_ns", "inputs", "outputs"))
        for at, (ns, ins, outs) in enumerate(kernels):
            rows.writerow((at, "k", ns, " ".join(map(str, ins)), " ".join(map(str, outs))))


def test_paging_by_hand(tmp_path):
    import job_traces
    import others
    # Four blocks of 1 GB that only are read, used in turn, in room for three: the one that is
    # needed next has always just left, and nothing is written back.
    sizes = {each: 10**9 for each in range(4)}
    kernels = [(10**9, [each], []) for each in range(4)]
    write(tmp_path / "turn", kernels, sizes, set(sizes))
    trace = job_traces.read(str(tmp_path / "turn"))
    assert others.paging_s(trace, 4 * 10**9) == pytest.approx(4.0)
    assert others.paging_s(trace, 3 * 10**9) == pytest.approx(4.0 + 4 / others.PAGING_GBS)
    assert others.paging_s(trace, 10**9 - 1) is None
    # Written, they have to leave as well.
    write(tmp_path / "written", [(10**9, [], [each]) for each in range(4)], sizes, set(sizes))
    trace = job_traces.read(str(tmp_path / "written"))
    assert others.paging_s(trace, 3 * 10**9) == pytest.approx(4.0 + 8 / others.PAGING_GBS)


def figures(*words):
    return subprocess.run([sys.executable, str(ROOT / "bench/jobs/figures.py"), *words],
                          capture_output=True, text=True, timeout=600)


def test_figures_of_a_job(tmp_path):
    done = figures("--jobs", "vit-large", "--budgets", "100,60", "--out", str(tmp_path / "out"),
                   "--firn", FIRN)
    assert done.returncode == 0, done.stderr
    job, = json.loads((tmp_path / "out/jobs.json").read_text())["jobs"]
    full, part = job["budgets"]
    assert full["lifetime"]["steady_s"] == pytest.approx(job["seconds"], rel=0.05)
    assert part["lifetime"]["bytes_spilled"] > 0
    assert part["lifetime"]["peak_device_bytes"] <= part["budget_bytes"]
    assert part["link_bound_s"] <= part["lifetime"]["steady_s"] <= part["age"]["steady_s"] * 1.02
    assert part["nothing"] == {"error": "out of memory"}
    assert (tmp_path / "out/vit-large.png").read_bytes().startswith(b"\x89PNG")
    assert not list((tmp_path / "out").glob("*.part"))


@pytest.mark.parametrize("words, said", [
    (("--jobs", "no-such"), "no such job: no-such"),
    (("--firn", "/nowhere/firn"), "/nowhere/firn is not there"),
    (("--budgets", "many"), "many"),
])
def test_wrong_words(words, said):
    done = figures(*words)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
