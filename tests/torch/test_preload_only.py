"""The same scripts with nothing but the library in front of the driver: PyTorch's own allocator,
made to ask for each block by itself, and no operator observed. Every bit is the same at half the
memory, or a little more."""


import pytest

from script_runs import (DEVICE_MEMORY, check_budget, check_same, clean_environment, finish,
                         script_command)
from test_scripts import SCRIPTS, SMALL

QUICK = "gpt_adamw.py"
# Small blocks do not leave. In the usual shape they are 21 of a peak of 48 MiB; here 8 of 103, as
# in a model of some size.
SHAPES = {**SMALL, "gpt_adamw.py": ("--steps", 2, "--layers", 1, "--length", 128, "--batch", 8,
                                    "--width", 512)}


def stand_in(paths):
    """Of the build folder, or of the package."""
    (driver,) = [each for each in paths.libraries if each.name.startswith("libcuda.so")]
    software = driver.parent
    for place in (software.parent / "libfirn_preload.so",
                  software.parents[2] / "allocator/preload/libfirn_preload.so"):
        if place.exists():
            return place
    raise FileNotFoundError("libfirn_preload.so beside %s" % software)


def run_preloaded(paths, folder, script, *arguments, budget, dirs, environment=()):
    """`backend:native` keeps Firn's plugin out, which the package would switch on."""
    return finish(script_command(paths, script, arguments), {
        **clean_environment(), "LD_PRELOAD": "%s:%s" % (stand_in(paths), paths.libraries[0]),
        "PYTORCH_CUDA_ALLOC_CONF": "backend:native", "FIRN_DEVICE": "software",
        "FIRN_GPU_MEMORY": str(DEVICE_MEMORY), "FIRN_BUDGET": str(budget), "FIRN_HOST": "32MiB",
        "FIRN_DIR": ";".join(map(str, dirs)), "FIRN_STATS": str(folder / "stats.json"),
        **dict(environment)}, folder)


@pytest.mark.parametrize("script", [
    pytest.param(script, marks=[pytest.mark.quick] if script == QUICK else [])
    for script in SCRIPTS])
def test_bits_are_equal(paths, native, spill_dir, tmp_path, script):
    alone = native(script, *SHAPES[script])
    budget = alone.budget(0.5)
    run = run_preloaded(paths, tmp_path, script, *SHAPES[script], budget=budget, dirs=[spill_dir])
    check_same(run, alone)
    check_budget(run, budget)
    assert "PYTORCH_NO_CUDA_MEMORY_CACHING=1 is set" in run.text
    device = run.device()
    assert device["spilled_bytes"] > 0 and device["faulted_bytes"] > 0
    assert device["out_of_memory"] == 0  # though memory was short before anything could leave
    coverage = run.stats["coverage"]
    assert coverage["launches"] > 100 and coverage["unknown_kernels"] == 0
    assert coverage["warnings"] == []


@pytest.mark.parametrize("script", [
    pytest.param(script, marks=[] if script == QUICK else [pytest.mark.long])
    for script in SCRIPTS])
def test_adversarial(paths, native, spill_dir, tmp_path, script):
    """Everything that may leave leaves before every launch and copy."""
    run = run_preloaded(paths, tmp_path, script, *SMALL[script], budget=4 << 30,
                        dirs=[spill_dir], environment={"FIRN_TEST_ADVERSARIAL": "1"})
    check_same(run, native(script, *SMALL[script]))
    device = run.device()
    assert device["spilled_bytes"] > 0 and device["faulted_bytes"] > 0
    assert device["lost_blocks"] == 0


@pytest.mark.long
@pytest.mark.parametrize("script", SCRIPTS)
def test_bits_are_equal_in_full(paths, native, spill_dir, tmp_path, script):
    alone = native(script)
    budget = alone.budget(0.5)
    run = run_preloaded(paths, tmp_path, script, budget=budget, dirs=[spill_dir])
    check_same(run, alone)
    check_budget(run, budget)
    assert run.device()["spilled_bytes"] > 0
