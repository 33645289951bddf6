"""The closing lines of tests/run.sh: how much was tried (figures.py), one per runner, then the sum.

Usage: summary.py MESON_TESTLOG_JSON PYTEST_JUNIT_XML PYTEST_LOG MESON_STATUS PYTEST_STATUS
                  [NAME LOG STATUS]...
NAME is a further runner, whose LOG ends with "N passed, N failed, N skipped".
Exit status: 0 when something ran, nothing failed, all runners ended well, and each test that passed
said the figures that the table has of it.
"""

import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree

import figures

PASSED = {"OK", "EXPECTEDFAIL"}
SKIPPED = {"SKIP"}


def count_meson(path):
    """(passed, failed, skipped) and the names that failed, from Meson's log of JSON lines."""
    counts, failed = [0, 0, 0], []
    if not os.path.exists(path):
        return counts, failed
    with open(path, encoding="utf-8") as log:
        for line in log:
            test = json.loads(line)
            result = test["result"].strip()
            kind = 0 if result in PASSED else 2 if result in SKIPPED else 1
            counts[kind] += 1
            if kind == 1:
                failed.append(f"{test['name']} ({result})")
    return counts, failed


def meson_words(path):
    """(name, whether it passed, output) of what ran, of Meson's log."""
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as log:
        tests = [json.loads(line) for line in log]
    return [(test["name"].split("firn:")[-1], test["result"].strip() in PASSED,
             test.get("stdout") or "") for test in tests if test["result"].strip() not in SKIPPED]


def runner_words(others):
    """The same of further runners; those that ran nothing have nothing to say."""
    words = []
    for name, log, status in others:
        with open(log, encoding="utf-8", errors="replace") as file:
            text = file.read()
        if sum(count_closing(log)[:2]) or int(status):
            words.append((name, int(status) == 0, text))
    return words


def count_pytest(path):
    """(passed, failed, skipped) from pytest's JUnit file; failures and errors are one."""
    counts = [0, 0, 0]
    if not os.path.exists(path):
        return counts
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        counts[1 if kinds & {"failure", "error"} else 2 if "skipped" in kinds else 0] += 1
    return counts


def closing_line(path):
    with open(path, encoding="utf-8", errors="replace") as log:
        lines = [line.strip() for line in log if line.strip()]
    return lines[-1].strip("= ") if lines else "no output"


def count_closing(path):
    """(passed, failed, skipped) from the closing line of a runner's log; nothing without one."""
    found = re.search(r"(\d+) passed, (\d+) failed, (\d+) skipped(?: \(.*\))?$", closing_line(path))
    return [int(number) for number in found.groups()] if found else [0, 0, 0]


def main(arguments):
    testlog, junit, pytest_log, meson_status, pytest_status = arguments[:5]
    others = [arguments[i:i + 3] for i in range(5, len(arguments), 3)]
    meson, failed = count_meson(testlog)
    pytest = count_pytest(junit)
    runners = [(meson, int(meson_status)), (pytest, int(pytest_status))]
    runners += [(count_closing(log), int(status)) for _, log, status in others]
    # A runner that broke down without a failed test (a crash, an interrupt) counts as one failure;
    # so does one of the others that says nothing of what it did.
    for number, (counts, status) in enumerate(runners):
        if (status != 0 or (number >= 2 and sum(counts) == 0)) and counts[1] == 0:
            counts[1] = 1
    lines, silent = figures.table(meson_words(testlog) + runner_words(others))
    total = [sum(each) for each in zip(*(counts for counts, _ in runners))]
    total[1] += len(silent)
    print("".join(f"\n{line}" for line in ["", *lines]) if lines else "")
    for error in silent:
        print(f"summary: {error}")
    print("meson: {} passed, {} failed, {} skipped".format(*meson)
          + (": " + ", ".join(failed) if failed else ""))
    print("pytest: " + closing_line(pytest_log))
    for (name, _, _), (counts, _) in zip(others, runners[2:]):
        print("{}: {} passed, {} failed, {} skipped".format(name, *counts))
    print("{} passed, {} failed, {} skipped".format(*total))
    if sum(total) == 0:
        print("run.sh: no test has such a name", file=sys.stderr)
        return 2
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
