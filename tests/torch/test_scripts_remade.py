"""Ordinary scripts, unchanged, whose blocks leave without a copy and are made again by the operator
that made them: every loss and every parameter is the same to the last bit."""

import pytest

from script_runs import check_same
from test_scripts import SCRIPTS, SMALL


@pytest.mark.parametrize("script", SCRIPTS)
def test_adversarial(native, with_firn, spill_dir, script):
    """What can be made again is dropped after every operator; all else is spilled."""
    alone = native(script, *SMALL[script])
    run = with_firn(script, *SMALL[script], budget="4GiB", dirs=[spill_dir], host="16MiB",
                    options=["--adversarial"], environment={"FIRN_REMAKE": "1"})
    check_same(run, alone)
    device = run.device()
    print({k: device[k] for k in ("recipes","dropped_bytes","remakes","remade_bytes","faulted_bytes","spilled_bytes")})
    assert device["dropped_bytes"] > 0 and device["remakes"] > 0
    assert device["remade_bytes"] <= device["dropped_bytes"]
    assert device["lost_blocks"] == 0
