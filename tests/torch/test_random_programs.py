"""Random PyTorch programs (programs/program.py) with Firn, at 15 to 60 % of the memory that they
hold: each tensor has the bits of the same operators on the CPU, whatever of the driver's and the
disk's fails. FIRN_TEST_SEEDS=20-29 takes other seeds; tests/long has them by the hour."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "programs"))
import jobs  # noqa: E402

STEPS = 250
CASES = [(1, "plain"), (3, "plain"), (8, "driver"), (9, "driver"), (4, "disk"), (6, "lost")]


def cases():
    wanted = os.environ.get("FIRN_TEST_SEEDS")
    if not wanted:
        return CASES
    first, last = map(int, wanted.split("-"))
    return [(seed, kind) for seed in range(first, last + 1) for kind in jobs.KINDS]


@pytest.mark.parametrize("seed, kind", cases())
def test_bits_are_those_of_the_cpu(paths, seed, kind):
    job, outcome = jobs.run_seed(paths, seed, kind, STEPS)
    told = f"{outcome.text[-3000:]}\n{job.words()}\nreplay: {jobs.replay(job)}"
    assert not outcome.failed(), f"{outcome.name}: {told}"
    if kind == "plain":
        assert outcome.name == "right", told
        assert outcome.of_devices("spilled_bytes") > 0 < outcome.of_devices("faulted_bytes"), told
        assert outcome.counts["compared"] > 50, told


def test_one_wrong_bit_is_found(paths):
    job, outcome = jobs.run_seed(paths, 3, "plain", STEPS, ["--spoil", "60"])
    assert outcome.name == "wrong", outcome.text
    assert "1 differ" in outcome.text and "WRONG thread 0" in outcome.text
