"""The table at the end of tests/run.sh holds what the tests' own closing words say, and words that
have changed are an error."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from firn_command import clean_environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = (ROOT / (os.environ.get("FIRN_TEST_BUILD") or "build")).resolve()
sys.path.insert(0, str(ROOT / "tests"))

import figures  # noqa: E402

FUZZ = """
target             runs   runs/s  corpus  coverage
config            40000    12000     310       850  passed
jobs               1200      300      40       120  {}
fuzz: {} passed, {} failed, 0 skipped
"""
NTH_CALLS = """scenario   answer         when   calls   runs    right    error  not met
job        oom            once     641    385      381        2        1
requests   not_ready      from     133    133      132        0        0
"""
BY_NAME = """store      what fails   when    runs    right    error  not met
io_uring   calls        once      15        3       10        0
threads    allocations  from      15        0       14        1
what fails          io_uring   threads encrypted   runs    failed  right  error  not met
fcntl                     58        64        58      2         8      0      0        0
"""
TAGS = ("600 seeds x 20000 operations in 157 s (10475812 in all), 168294 faults injected "
        "(11 device_death, 2 late), 439 blocks lost as they had to be, {} wrong\n")
SANITIZERS = "thread: failed: x (FAIL)\nthread: 46 passed, 1 failed, 2 skipped (built in 9 s)\n"
# The programs, with few cases: how many there are then (or at least, of a hundred and more), and
# words of theirs without which there is no row.
PROGRAMS = {
    "tags": ("simulation/tags_test", [], {"FIRN_SEEDS": "3", "FIRN_OPERATIONS": "2000"}, 3,
             ["injected", "lost", "wrong"]),
    "tags_same": ("simulation/tags_test", ["--same"],
                  {"FIRN_SEEDS": "2", "FIRN_OPERATIONS": "500"}, 2, ["twice", "differ"]),
    "engine_property": ("allocator/engine_property_test", [], {"FIRN_SEEDS": "3"}, 3,
                        ["seeds", "failed"]),
    "canaries": ("simulation/canaries/canaries_test", ["14"], {}, 1, ["canaries", "oracle"]),
    "driver_faults": ("faults/driver_faults_test", [], {"FIRN_TEST_LENGTH": "quick"}, 500,
                      ["runs", "right", "error"]),
    "process_faults": ("faults/process_faults_test", [],
                       {"FIRN_TEST_LENGTH": "quick", "FIRN_FAULTS_KIND": "calls"}, 30,
                       ["runs", "right", "error"]),
    "store_corruption threads": ("backing/store/store_corruption_test",
                                 ["--gtest_filter=*/threads*"], {}, 5000, ["healed", "handed"]),
    "model_streams": ("models/model_streams", ["200"], {}, 200, ["executions", "canary"]),
}


def row_of(name, text, passed=True):
    """(the cells of its row, errors)."""
    lines, errors = figures.table([(name, passed, text)])
    assert len(lines) == 2, lines
    head, row = (re.split(r"  +", line) for line in lines)
    return dict(zip(head, row)), errors


# Of these tests/run.sh has the whole output in each run.
LONG = ("process_faults", "store_corruption threads")


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else
                                  name for name in PROGRAMS])
def test_a_program_s_own_words_make_its_row(name):
    program, arguments, environment, least, words = PROGRAMS[name]
    path = BUILD / "tests" / program
    if not path.exists():
        pytest.skip(f"{path} is not built")
    gpu = str(BUILD / "backing/gpu/software/libcuda.so.1")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=300,
                          env={**clean_environment(), "FIRN_TEST_GPU": gpu, **environment})
    assert done.returncode == 0, done.stdout[-3000:]
    row, errors = row_of(name, done.stdout)
    assert errors == []
    times = int(row["times"].replace(",", ""))
    assert times == least if least < 20 else times >= least
    assert row["survived"] == row["times"] and row["lost or wrong"] == "0"
    for word in words:
        row, errors = row_of(name, re.sub(rf"\b{word}\b", "otherwise", done.stdout))
        assert row["times"] == "no figures", (word, row)
        assert errors == [f"{name} passed, and no figures were found in its output"]


@pytest.mark.parametrize("name, text, times, survived, wrong", [
    ("fuzz", FUZZ.format("passed", 2, 0), "41,200", "41,200", "0"),
    ("fuzz", FUZZ.format("FAILED", 1, 1), "41,200", "41,199", "1"),
    ("sanitizers-thread", SANITIZERS, "47", "46", "1"),
    ("driver_faults", NTH_CALLS, "518", "516", "2"),
    ("process_faults", BY_NAME, "30", "28", "2"),
    ("tags", TAGS.format(0), "600", "600", "0"), ("tags", TAGS.format(2), "600", "598", "2"),
    ("tags_same", "40 seeds x 4000 operations twice, 3 differ\n", "40", "37", "3"),
    ("engine_property", "1000 seeds, 5 failed\n", "1,000", "995", "5"),
    ("canaries", "24 of 25 canaries found, each by an oracle that is meant to\n", "25", "24", "1"),
])
def test_what_is_wrong_is_told(name, text, times, survived, wrong):
    row, errors = row_of(name, text, passed=False)
    assert (row["times"], row["survived"], row["lost or wrong"]) == (times, survived, wrong)
    assert errors == []
    # A program that says so and ends with status 0 is no pass.
    assert len(row_of(name, text)[1]) == (wrong != "0")


def test_the_figures_of_several_programs_are_one_row():
    text = "{} corruptions: {} healed, {} corrupt, 0 handed over\n"
    lines, errors = figures.table([("store_corruption io_uring", True, text.format(10, 6, 4)),
                                   ("store_corruption threads", True, text.format(20, 15, 5))])
    assert errors == []
    assert lines[1].split() == ["store_corruption", "(2)", "30", "slots", "30", "30", "9", "9", "0"]
    # One of them without figures is seen beside the other.
    lines, errors = figures.table([("store_corruption io_uring", True, text.format(10, 6, 4)),
                                   ("store_corruption threads", True, "[  PASSED  ] 1 test.\n")])
    assert len(lines) == 3 and "no figures" in lines[2]
    assert errors == ["store_corruption threads passed, and no figures were found in its output"]


def summarise(folder, tests, *others):
    testlog = folder / "testlog.json"
    testlog.write_text("".join(json.dumps(
        {"name": f"sim - firn:{name}", "result": result, "stdout": text}) + "\n"
        for name, result, text in tests))
    (folder / "pytest.log").write_text("2 passed in 1 s\n")
    return subprocess.run([sys.executable, ROOT / "tests/summary.py", testlog, folder / "none.xml",
                           folder / "pytest.log", "0", "0", *map(str, others)],
                          capture_output=True, text=True)


def test_the_summary_closes_with_the_table(tmp_path):
    log = tmp_path / "fuzz.log"
    log.write_text(FUZZ.format("passed", 2, 0))
    done = summarise(tmp_path, [("tags", "OK", TAGS.format(0)), ("other", "OK", "")],
                     "fuzz", log, 0)
    lines = done.stdout.strip().splitlines()
    assert done.returncode == 0, done.stdout
    assert lines[0].startswith("tried ") and lines[1].split()[:2] == ["tags", "600"]
    assert lines[2].split()[:3] == ["fuzz", "(2)", "41,200"]
    assert lines[-1] == "4 passed, 0 failed, 0 skipped"
    # A test that was skipped has no row, and is no error.
    log.write_text("fuzz: 0 passed, 0 failed, 12 skipped\n")
    done = summarise(tmp_path, [("tags", "SKIP", ""), ("other", "OK", "")], "fuzz", log, 0)
    assert done.returncode == 0 and "tried" not in done.stdout


@pytest.mark.parametrize("result, failed", [("OK", 1), ("FAIL", 1), ("TIMEOUT", 1)])
def test_a_row_without_figures_is_a_failure(tmp_path, result, failed):
    """Of a test that passed; one that failed counts once."""
    done = summarise(tmp_path, [("tags", result, "600 seeds, all well\n")])
    lines = done.stdout.strip().splitlines()
    assert "no figures" in lines[1]
    assert lines[-1].split(", ")[1] == f"{failed} failed" and done.returncode == 1
