"""Jobs over libraries of others, and jobs as others write them, at a part of the memory that they
need: the same bits."""

import os
import pathlib
import subprocess

import pytest

import script_runs

HERE = pathlib.Path(__file__).resolve().parent / "libraries"
JOBS = sorted(each.name for each in HERE.glob("*.py") if each.name != "job.py")
FRACTIONS = {"half": .5, "third": .35}

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def search():
    """The environment in which the jobs find their libraries."""
    done = subprocess.run(["bash", str(HERE / "install.sh")], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return {"PYTHONPATH": os.pathsep.join([str(script_runs.SCRIPTS), done.stdout.strip()])}


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("job", JOBS)
def test_bits_are_equal(native, with_firn, search, spill_dir, job, fraction):
    alone = native(str(HERE / job), environment=search)
    budget = alone.budget(FRACTIONS[fraction])
    run = with_firn(str(HERE / job), budget=budget, dirs=[spill_dir], environment=search)
    script_runs.check_same(run, alone)
    script_runs.check_budget(run, budget)
    assert run.device()["spilled_bytes"] > 0


def test_lightning_logs_firns_figures(native, with_firn, search, spill_dir):
    script = str(HERE / "lightning_fit.py")
    alone = native(script, environment=search)
    run = with_firn(script, budget="4GiB", dirs=[spill_dir], environment=search)
    script_runs.check_same(run, alone)
    (without,), (columns,) = alone.values("logged"), run.values("logged")
    assert "val" in without.split() and "firn/" not in without
    assert {"firn/device_mib", "firn/waited_s", "val"} <= set(columns.split())
