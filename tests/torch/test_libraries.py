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


@pytest.fixture(scope="module")
def alone(places, search, tmp_path_factory):
    """alone(job): the run with PyTorch's own allocator, once for both budgets."""
    kept = {}

    def run(job):
        if job not in kept:
            kept[job] = script_runs.run_native(places, tmp_path_factory.mktemp("native"),
                                               str(HERE / job), environment=search)
        assert kept[job].status == 0, kept[job].text
        return kept[job]

    return run


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("job", JOBS)
def test_bits_are_equal(alone, with_firn, search, spill_dir, job, fraction):
    native = alone(job)
    budget = native.budget(FRACTIONS[fraction])
    run = with_firn(str(HERE / job), budget=budget, dirs=[spill_dir], environment=search)
    script_runs.check_same(run, native)
    script_runs.check_budget(run, budget)
    assert run.device()["spilled_bytes"] > 0


def test_lightning_logs_firns_figures(alone, with_firn, search, spill_dir):
    native = alone("lightning_fit.py")
    run = with_firn(str(HERE / "lightning_fit.py"), budget="4GiB", dirs=[spill_dir],
                    environment=search)
    script_runs.check_same(run, native)
    (without,), (columns,) = native.values("logged"), run.values("logged")
    assert "val" in without.split() and "firn/" not in without
    assert {"firn/device_mib", "firn/waited_s", "val"} <= set(columns.split())
