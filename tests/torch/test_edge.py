"""At the edge of the budget: once its iterations are known, a job that just fits moves nothing,
though it is watched (bench/overhead/edge.py tells what it costs)."""

import sys

import pytest

import script_runs

sys.path.insert(0, str(script_runs.ROOT / "bench" / "overhead"))
import in_turn  # noqa: E402

PROGRAMS = {
    "gpt_adamw.py": ("--layers", 3, "--batch", 10),
    "convnet_bn_sgd_checkpoint.py": ("--blocks", 1, "--batch", 8),
    "lstm.py": ("--length", 6, "--batch", 600),
}
LEARNING = 4  # steps until the program is known
STEPS = 9
MANY = 1000  # the runs are ended from outside
MOVED_PART_MOST = 0.005  # of the budget, in a step


def run(paths, folder, directory, script, steps, budget, policy):
    """What was noted at the end of each step."""
    command, environment = in_turn.with_firn(
        paths, folder, str(script_runs.SCRIPTS / script), "--steps", MANY, *PROGRAMS[script],
        budget=budget, dirs=[directory], environment={"FIRN_POLICY": policy})
    stepwise = in_turn.StepByStep(command, environment, folder / "log")
    try:
        return [stepwise.step() for _ in range(steps)]
    finally:
        stepwise.end()


@pytest.mark.parametrize("script, policy", [
    ("gpt_adamw.py", "lifetime"), ("convnet_bn_sgd_checkpoint.py", "lifetime"),
    ("lstm.py", "lifetime"), ("gpt_adamw.py", "age")])
def test_a_job_that_just_fits_moves_nothing(paths, tmp_path, spill_dir, script, policy):
    free = run(paths, tmp_path, spill_dir, script, 2, "4GiB", policy)[-1]
    assert not free["observing"]
    budget = -(-free["peak_device_bytes"] * 102 // 100 // script_runs.GRANULE)
    budget *= script_runs.GRANULE
    notes = run(paths, tmp_path, spill_dir, script, STEPS, budget, policy)
    learned, last = notes[LEARNING - 1], notes[-1]
    assert last["observing"], "so near its budget memory has to be watched"
    assert last["peak_device_bytes"] <= budget
    if policy == "lifetime":
        assert last["period_found"] and last["plan_s"] > learned["plan_s"], "nothing was decided"
    moved = (last["spilled_bytes"] - learned["spilled_bytes"]) / (STEPS - LEARNING)
    assert moved <= MOVED_PART_MOST * budget
    assert last["evictions"] == last["faults"] == last["prefetched_bytes"] == 0
