"""The driver refuses everything from the nth call on, or the nth call alone, in a PyTorch program
whose memory is short: every step is answered at once in the driver's words, no byte is wrong, the
process ends by itself, and no spill file is left."""

import json
import os
import pathlib
import subprocess

import pytest
from conftest import PYTHON

NAMES = {700: ("an illegal memory access was encountered", "CUDA_ERROR_ILLEGAL_ADDRESS"),
         710: ("device-side assert triggered", "CUDA_ERROR_ASSERT"),
         719: ("unspecified launch failure", "CUDA_ERROR_LAUNCH_FAILED"),
         2: ("out of memory", "CUDA_ERROR_OUT_OF_MEMORY"),
         999: ("unknown error", "CUDA_ERROR_UNKNOWN")}
MOST = 2000  # calls; later ones are of the same kinds
STEP_S, END_S = 5, 30  # on a machine that has much else to do


def tried(begin, once):
    """(begin, n, error, once): a few; in a long run each n at first, then some, the errors in
    turn."""
    long = os.environ.get("FIRN_TEST_LENGTH") == "long"
    n, turn, wanted = 1, begin == "work", []
    while n < MOST:
        wanted.append((begin, n, list(NAMES)[turn % len(NAMES)], once))
        turn += 1
        n += (1 if n < 60 else 1 + n // 6) if long else 1 + n
    return wanted


def runs_of(environment, libraries, folder, wanted):
    spill = folder / "spill"
    spill.mkdir()
    file = folder / "wanted.json"
    file.write_text(json.dumps(wanted))
    conf = f"backend:firn,firn_budget:24MiB,firn_host:16MiB,firn_dir:{spill}"
    script = pathlib.Path(__file__).with_name("refused_calls.py")
    done = subprocess.run(
        [PYTHON, str(script), str(file), str(libraries["software/libcuda.so.1"])],
        env={**environment, "LD_PRELOAD": libraries["software/libcudart.so.13"],
             "PYTORCH_CUDA_ALLOC_CONF": conf, "OMP_NUM_THREADS": "1"},
        cwd=folder, text=True, capture_output=True, timeout=3000, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not list(spill.iterdir())
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("once", [False, True], ids=["from_then_on", "once"])
@pytest.mark.parametrize("begin", ["start", "work"])
def test_every_step_is_answered(software_environment, libraries, tmp_path, begin, once):
    wanted = tried(begin, once)
    healthy, *runs = runs_of(software_environment, libraries, tmp_path,
                             [(begin, 0, 0, once), *wanted])
    assert healthy["status"] == 0 and healthy["words"] == [] and healthy["calls"] > 500, healthy
    assert len(runs) == len(wanted)
    for run in runs:
        assert run["status"] == 0, run  # neither a signal nor wrong bytes
        assert once or run["words"] or run["calls"] < run["n"], run  # it was felt
        for words in run["words"]:
            assert any(name in words for name in NAMES[run["error"]]), (words, run)
        assert run["seconds"] < STEP_S and run["end"] < END_S, run
    assert any(run["words"] for run in runs)
