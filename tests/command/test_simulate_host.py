"""Host memory between the device and the store: it keeps what fits, only the rest is written to the
SSD and read back, once, and more of it is never slower."""

import json
import random
import subprocess
import sys

import pytest
from firn_command import ROOT, find_binary

sys.path.insert(0, str(ROOT / "bench" / "simulate"))
import random_programs  # noqa: E402

GIB = 1 << 30
GPU_GIB = 4
# Reserved for transfers and for what is written ahead: not all of host memory keeps what left.
RESERVED_GIB = 1.4


def deep_training(prefix, seed):
    """A step that needs twice the GPU's memory; its peak, GiB."""
    draw = random.Random(seed)
    trace = random_programs.Trace()
    weights = [trace.tensor(16, "persistent") for _ in range(48)]
    moments = [trace.tensor(16, "persistent") for _ in range(48)]
    sizes = [draw.uniform(40, 90) for _ in range(48)]
    random_programs.training_step(trace, weights, moments, sizes, 12_000)
    trace.write(prefix)
    return random_programs.peak_mib(trace) / 1024


def simulate(prefix, *words):
    done = subprocess.run([find_binary(), "simulate", str(prefix), "--gpu-memory", f"{GPU_GIB}GiB",
                           "--json", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("seed", range(1, 4))
def test_only_what_host_memory_cannot_hold_goes_to_the_ssd(tmp_path, seed):
    peak = deep_training(tmp_path / "deep", seed)
    excess = peak - GPU_GIB
    assert excess > 2
    seconds = []
    for host in (0.25, 1.5, 2, 3, 4, 6, 16):
        found = simulate(tmp_path / "deep", "--host", f"{host * 1024:.0f}MiB",
                         "--ssd-read", "1.5GiB/s", "--ssd-write", "1.5GiB/s")
        overflow = excess - host
        if host > RESERVED_GIB:  # with no room at all the order of arrival decides
            for way in ("bytes_written", "bytes_read"):
                assert found[way] <= 1.05 * max(overflow + RESERVED_GIB, 0) * GIB, (host, way)
        if overflow > 0:
            assert found["bytes_written"] >= 0.9 * overflow * GIB, host
        seconds.append(found["steady_s"])
    for slower, faster in zip(seconds, seconds[1:]):
        assert faster <= 1.02 * slower, seconds
    assert seconds[-1] < 0.9 * seconds[0], "host memory made no difference: nothing was compared"


def test_what_is_written_ahead_is_chosen_by_rehearsal(tmp_path):
    deep_training(tmp_path / "deep", 1)
    # (Single iterations take up to some percent longer where the SSD is the limit.)
    slow = ("--ssd-read", "1GiB/s", "--ssd-write", "1GiB/s", "--iterations", "24")
    for host in ("256MiB", "3GiB"):
        # Where a slow SSD is the limit, a part written ahead gives a little; where nearly all fits
        # host memory, nothing is left to gain.
        given = simulate(tmp_path / "deep", *slow, "--host", host, "--spare", "0.0625")
        none = simulate(tmp_path / "deep", *slow, "--host", host, "--spare", "0")
        assert none["spare"] == 0
        assert given["spare"] in ((0.0625, 0.25) if host == "256MiB" else (0.0625 / 4, 0.0625)), given
        assert given["steady_s"] <= (0.99 if host == "256MiB" else 1.005) * none["steady_s"]
        if host == "3GiB":
            assert given["fraction_of_ideal"] > 0.995
    roomy = simulate(tmp_path / "deep", "--host", "16GiB", "--spare", "0.2")
    assert roomy["spare"] == 0.2
