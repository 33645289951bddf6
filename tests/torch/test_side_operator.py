"""An operator whose work goes to a stream of its own: its tensors are in use there after it has
ended. Without NCCL: torch operators that a script registers, over the driver's own entries."""

import pytest

import script_runs

SCRIPT = "side_operator.py"


def test_adversarial(native, with_firn, spill_dir):
    """All memory leaves after every operator, but for what is in use: else the software GPU ends
    the process at the first unmapping."""
    run = with_firn(SCRIPT, budget="1GiB", dirs=[spill_dir], options=["--adversarial"])
    script_runs.check_same(run, native(SCRIPT))
    assert run.device()["spilled_bytes"] > 0


@pytest.mark.parametrize("watch", ["0", "0.9"])
def test_under_pressure(native, with_firn, spill_dir, watch):
    """From the start; and where operators are observed only once memory is short, while work of
    before is still going on."""
    budget = 40 << 20
    run = with_firn(SCRIPT, budget=budget, dirs=[spill_dir], options=["--watch", watch])
    script_runs.check_same(run, native(SCRIPT))
    assert run.device()["spilled_bytes"] > 0
    assert run.peak() > budget
