"""The hour of everything mixed (tests/long) counts what its pieces tried."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from firn_command import clean_environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = (ROOT / (os.environ.get("FIRN_TEST_BUILD") or "build")).resolve()
sys.path.insert(0, str(ROOT / "tests/long"))

import pieces  # noqa: E402

HEAD = "store      what fails   when   calls   runs    right    error  not met\n"
CALLS = HEAD + """io_uring   calls        once     374     42       40        2        0
threads    allocations  from    1846     60        0       55        5
what failed first, in how many runs:  28 chmod 2
"""
CORRUPT = "5375 corruptions: 2691 healed, 2684 corrupt, 0 handed over\n"
FUZZ = """
target             runs   runs/s  corpus  coverage
config            40000    12000     310       850  passed
jobs               1200      300      40       120  passed
fuzz: 2 passed, 0 failed, 0 skipped
"""


def piece(name):
    return next(each for each in pieces.pieces() if each.name == name)


@pytest.mark.parametrize("name, text, runs, faults, right, refused", [
    ("driver's nth calls", CALLS, 102, 97, 45, 57), ("process's nth calls", CALLS, 102, 97, 45, 57),
    ("corrupt slots", CORRUPT + CORRUPT, 10750, 10750, 5382, 5368),
    ("fuzzers", FUZZ, 41200, 0, 41200, 0), ("real faults", "75 passed in 280 s\n", 75, 0, 75, 0),
])
def test_what_was_tried_is_counted(name, text, runs, faults, right, refused):
    tried = piece(name).tried(0, text)
    assert (tried.runs, tried.faults, tried.right, tried.refused) == (runs, faults, right, refused)
    assert not tried.bad() and tried.words == ""
    assert piece(name).tried(1, text).failed == 1
    silent = piece(name).tried(0, "all is well\n")
    assert silent.failed == 1 and "no figures were found" in silent.words


def test_a_run_without_an_end_is_a_failure():
    tried = piece("driver's nth calls").tried(1, CALLS.replace("   40        2", "   39        2"))
    assert tried.failed == 1 and tried.right == 44 and "replay: " in tried.words


@pytest.mark.parametrize("length, minutes", [("quick", 30), ("normal", 30), ("long", 150)])
def test_every_call_is_allowed_its_time(monkeypatch, length, minutes):
    """Alone they take 33 minutes of two cores, which the hour's other pieces share."""
    monkeypatch.setenv("FIRN_TEST_LENGTH", length)
    assert piece("process's nth calls").minutes == minutes
    assert piece("driver's nth calls").minutes == (60 if length == "long" else 20)


def test_the_table_has_its_figures(tmp_path):
    """Of a piece that is run: a program's own words."""
    if not (BUILD / "tests/faults/driver_faults_test").exists():
        pytest.skip("driver_faults_test is not built")
    done = subprocess.run(["bash", ROOT / "tests/long/run.sh", "--minutes", "0.1", "--only",
                           "driver's nth"], capture_output=True, text=True, timeout=300,
                          env={**clean_environment(), "FIRN_TEST_LENGTH": "quick",
                               "FIRN_TEST_BUILD": str(BUILD)})
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[-1] == "long: 1 passed, 0 failed, 0 skipped", done.stdout
    rows = [re.split(r"  +", line) for line in lines if line.startswith(("tried", "driver's"))]
    row = dict(zip(*rows))
    count = {name: int(row[name].replace(",", ""))
             for name in ("runs", "faults", "right", "refused")}
    assert count["runs"] >= count["faults"] > 500
    assert count["right"] + count["refused"] == count["runs"] and count["refused"] > 100
    assert row["operations"] == "-" and row["failed"] == "0"
