"""One process that uses two devices, each with its budget: bits equal with less than it needs, and
in adversarial mode, in which a copy between devices that goes unseen is a crash."""

import script_runs

SCRIPT = "two_devices.py"
ENVIRONMENT = {"FIRN_GPU_DEVICES": "2"}


def run_native(paths, folder):
    run = script_runs.run_native(paths, folder, SCRIPT, environment=ENVIRONMENT)
    assert run.status == 0, run.text
    return run


def check_same(run, native):
    script_runs.check_same(run, native)
    assert run.values("case") == native.values("case") and len(run.values("case")) == 6
    devices = run.stats["devices"]
    assert [each["device"] for each in devices] == [0, 1]
    for device in devices:
        assert device["lost_blocks"] == 0
        assert device["spilled_bytes"] > 0 and device["faulted_bytes"] > 0
    return devices


def test_bits_are_equal_within_a_budget_for_each(paths, with_firn, spill_dir, tmp_path):
    native = run_native(paths, tmp_path)
    peaks = [int(peak) for peak in native.values("peaks")[0].split()]
    budget = min(peaks) * 2 // 3 // script_runs.GRANULE * script_runs.GRANULE
    run = with_firn(SCRIPT, budget=budget, dirs=[spill_dir], environment=ENVIRONMENT)
    for device in check_same(run, native):
        assert device["peak_device_bytes"] <= device["budget_bytes"] <= budget


def test_adversarial(paths, with_firn, spill_dir, tmp_path):
    """With the least host memory there is: the first device takes all of it before the second one
    comes, which has to find some nevertheless."""
    run = with_firn(SCRIPT, budget="4GiB", dirs=[spill_dir], host="16MiB",
                    environment=ENVIRONMENT, options=["--adversarial"])
    check_same(run, run_native(paths, tmp_path))
