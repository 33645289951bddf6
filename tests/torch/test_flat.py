"""A small training loop that goes on for long at half the memory it needs, with little host memory
and a real directory: what the process, its files and the device hold does not grow, and the bits
at the end are right."""

import json

import pytest

import script_runs
from script_runs import check_budget, check_same

SCRIPT = "small_loop.py"
MIB = 1 << 20
WARM_PART = 0.2  # of the iterations, not looked at
# A line through what is held grows by no more than this from its first to its last sample. A
# megabyte over 8,000 iterations is 131 bytes an iteration.
GROWTH_MOST = {"anonymous": 1 * MIB, "resident": 3 * MIB, "stored": 0, "files": 0.5, "threads": 0.5,
               "device_bytes": 2 * MIB, "hosted": 4 * MIB, "nvme_bytes": 4 * MIB, "allocated": 0}


def growth(samples, name):
    """By how much the least-squares line through the samples grows from the first to the last."""
    steps, values = [each["step"] for each in samples], [each[name] for each in samples]
    mean_step, mean = sum(steps) / len(steps), sum(values) / len(values)
    slope = sum((s - mean_step) * (v - mean) for s, v in zip(steps, values)) / sum(
        (s - mean_step) ** 2 for s in steps)
    return slope * (steps[-1] - steps[0])


def check_flat(native, with_firn, spill_dir, steps, policy):
    arguments = ("--steps", steps, "--every", max(steps // 100, 1))
    alone = native(SCRIPT, *arguments)
    budget = alone.budget(0.5)
    run = with_firn(SCRIPT, *arguments, "--dir", spill_dir, budget=budget, host="16MiB",
                    dirs=[spill_dir], environment={"FIRN_POLICY": policy})
    check_same(run, alone)
    check_budget(run, budget)
    samples = [json.loads(line) for line in run.values("held")]
    looked_at = [each for each in samples if each["step"] >= WARM_PART * steps]
    first, last = looked_at[0], looked_at[-1]
    # It went on spilling and coming back, to files too.
    passed = last["step"] - first["step"]
    assert last["spilled_bytes"] - first["spilled_bytes"] > passed * MIB
    assert run.stats["store"]["written_bytes"] > steps * MIB / 4
    assert last["lost_blocks"] == 0 and last["stored"] > 0
    grown = {name: growth(looked_at, name) for name in GROWTH_MOST}
    print({name: round(value) for name, value in grown.items()})
    assert not {name: value for name, value in grown.items() if value > GROWTH_MOST[name]}, grown


@pytest.mark.parametrize("policy", ["lifetime"])
def test_what_is_held_does_not_grow(native, with_firn, spill_dir, policy):
    check_flat(native, with_firn, spill_dir, 400, policy)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["lifetime", "age"])
def test_what_is_held_does_not_grow_in_10000_iterations(native, with_firn, spill_dir, policy,
                                                        monkeypatch):
    monkeypatch.setattr(script_runs, "TIMEOUT_S", 3 * 3600)
    check_flat(native, with_firn, spill_dir, 10_000, policy)
