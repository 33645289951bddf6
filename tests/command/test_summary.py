"""The closing lines of tests/run.sh add up, and a broken runner is never a pass."""

import json
import pathlib
import subprocess
import sys

import pytest

SUMMARY = pathlib.Path(__file__).resolve().parents[1] / "summary.py"
CASES = {"passed": "<testcase/>", "failed": "<testcase><failure/></testcase>",
         "error": "<testcase><error/></testcase>", "skipped": "<testcase><skipped/></testcase>"}


def summarise(folder, meson, cases, meson_status=0, pytest_status=0, others=()):
    testlog, junit, log = (folder / name for name in ("testlog.json", "pytest.xml", "pytest.log"))
    if meson is not None:
        testlog.write_text("".join(json.dumps({"name": f"t{i}", "result": result}) + "\n"
                                   for i, result in enumerate(meson)))
    junit.write_text("<testsuites><testsuite>" + "".join(CASES[case] for case in cases)
                     + "</testsuite></testsuites>")
    log.write_text("...\n==== its own words ====\n\n")
    return subprocess.run([sys.executable, SUMMARY, testlog, junit, log, str(meson_status),
                           str(pytest_status), *map(str, others)], capture_output=True, text=True)


@pytest.mark.parametrize("meson, cases, statuses, line, status", [
    (["OK", "OK", "SKIP"], ["passed", "skipped"], (0, 0), "3 passed, 0 failed, 2 skipped", 0),
    (["OK", "FAIL", "TIMEOUT", "ERROR"], ["passed"], (3, 0), "2 passed, 3 failed, 0 skipped", 1),
    (["OK"], ["failed", "error"], (0, 1), "1 passed, 2 failed, 0 skipped", 1),
    (["EXPECTEDFAIL", "UNEXPECTEDPASS"], [], (1, 0), "1 passed, 1 failed, 0 skipped", 1),
    (["INTERRUPT"], [], (1, 0), "0 passed, 1 failed, 0 skipped", 1),
    (["OK"], ["passed"], (0, 139), "2 passed, 1 failed, 0 skipped", 1),
    (["OK"], ["passed"], (2, 0), "2 passed, 1 failed, 0 skipped", 1),
    (None, ["passed"], (0, 0), "1 passed, 0 failed, 0 skipped", 0),
    (None, [], (0, 0), "0 passed, 0 failed, 0 skipped", 2),
])
def test_the_sum_and_the_status(tmp_path, meson, cases, statuses, line, status):
    result = summarise(tmp_path, meson, cases, *statuses)
    lines = result.stdout.strip().splitlines()
    assert lines[-1] == line
    assert lines[-2] == "pytest: its own words"
    assert result.returncode == status


@pytest.mark.parametrize("text, status, line, code", [
    ("table\n12 passed, 0 failed, 1 skipped\n", 0, "13 passed, 0 failed, 1 skipped", 0),
    ("address: 5 passed, 0 failed, 0 skipped (in 9 s)\n", 0, "6 passed, 0 failed, 0 skipped", 0),
    ("fuzz: 3 passed, 1 failed, 0 skipped\n", 1, "4 passed, 1 failed, 0 skipped", 1),
    ("3 passed, 0 failed, 0 skipped\n", 2, "4 passed, 1 failed, 0 skipped", 1),
    ("no such line\n", 0, "1 passed, 1 failed, 0 skipped", 1),
    ("", 0, "1 passed, 1 failed, 0 skipped", 1),
    ("3 passed, 0 failed, 0 skipped\nand then it broke\n", 0, "1 passed, 1 failed, 0 skipped", 1),
])
def test_further_runners_count(tmp_path, text, status, line, code):
    log = tmp_path / "other.log"
    log.write_text(text)
    result = summarise(tmp_path, ["OK"], [], others=("mutation", log, status))
    lines = result.stdout.strip().splitlines()
    assert lines[-1] == line
    assert lines[-2].startswith("mutation: ")
    assert result.returncode == code
