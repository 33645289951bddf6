"""The same scripts with nothing but the library in front of the driver: PyTorch's own allocator,
made to ask for each block by itself, and no operator observed. Every bit is the same at half the
memory, or a little more."""

import pathlib

import pytest

from script_runs import (DEVICE_MEMORY, check_budget, check_same, clean_environment, finish,
                         script_command)
from test_scripts import SCRIPTS, SMALL

QUICK = "gpt_adamw.py"
# Of its peak of some 48 MiB small blocks, which do not leave, have 20, and nobody cuts the
# optimizer's lists here: at half of the peak it depends on the threads' timing whether they fit.
PARTS = {"gpt_adamw.py": 0.65}


def stand_in(places):
    """Of the build folder, or of the package."""
    software = pathlib.Path(places.libraries[1]).parent
    for place in (software.parent / "libfirn_preload.so",
                  software.parents[2] / "allocator/preload/libfirn_preload.so"):
        if place.exists():
            return place
    raise FileNotFoundError("libfirn_preload.so beside %s" % software)


def run_preloaded(places, folder, script, *arguments, budget, dirs, environment=()):
    """`backend:native` keeps Firn's plugin out, which the package would switch on."""
    return finish(script_command(places, script, arguments), {
        **clean_environment(), "LD_PRELOAD": "%s:%s" % (stand_in(places), places.libraries[0]),
        "PYTORCH_CUDA_ALLOC_CONF": "backend:native", "FIRN_DEVICE": "software",
        "FIRN_GPU_MEMORY": str(DEVICE_MEMORY), "FIRN_BUDGET": str(budget), "FIRN_HOST": "32MiB",
        "FIRN_DIR": ";".join(map(str, dirs)), "FIRN_STATS": str(folder / "stats.json"),
        **dict(environment)}, folder)


@pytest.mark.parametrize("script", [
    pytest.param(script, marks=[pytest.mark.quick] if script == QUICK else [])
    for script in SCRIPTS])
def test_bits_are_equal(places, native, spill_dir, tmp_path, script):
    alone = native(script, *SMALL[script])
    budget = alone.budget(PARTS.get(script, 0.5))
    run = run_preloaded(places, tmp_path, script, *SMALL[script], budget=budget, dirs=[spill_dir])
    check_same(run, alone)
    check_budget(run, budget)
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING=1 is set" in run.text
    device = run.device()
    assert device["spilled_bytes"] > 0 and device["faulted_bytes"] > 0
    coverage = run.stats["coverage"]
    assert coverage["launches"] > 100 and coverage["unknown_kernels"] == 0
    assert coverage["warnings"] == []


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS)
def test_bits_are_equal_in_full(places, native, spill_dir, tmp_path, script):
    alone = native(script)
    budget = alone.budget(0.5)
    run = run_preloaded(places, tmp_path, script, budget=budget, dirs=[spill_dir])
    check_same(run, alone)
    check_budget(run, budget)
    assert run.device()["spilled_bytes"] > 0
