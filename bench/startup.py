#!/usr/bin/env python3
"""What Firn's start-up line (pytorch_plugin/firn/firn.pth) costs an interpreter that never imports
torch: starts in pairs, one with the line and one without, alternating.

    python3 bench/startup.py [--pairs 200] [--python PYTHON]

Prints wall and processor time of a start with and without, the difference in pairs, user-space
instructions (perf stat, where it is allowed), system calls (strace, where there is one), and what
the line alone takes inside a process.
"""

import argparse
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

LINE = pathlib.Path(__file__).resolve().parent.parent / "pytorch_plugin/firn/firn.pth"
INSIDE = """
import sys, time
code = compile(open(sys.argv[1]).read(), "firn.pth", "exec")
best = []
for _ in range(2000):
    begin = time.perf_counter_ns()
    exec(code, {})
    best.append(time.perf_counter_ns() - begin)
begin = time.perf_counter_ns()
exec(open(sys.argv[1]).read(), {})  # read, compiled and run, as site does
whole = time.perf_counter_ns() - begin
print(sorted(best)[1000], whole)
"""


def environment():
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PYTORCH_", "FIRN_"))}


def start(python):
    """(wall, processor) milliseconds of one start."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    subprocess.run([python, "-c", "pass"], env=environment(), check=True)
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * wall, 1000 * (after.ru_utime + after.ru_stime - before.ru_utime
                                - before.ru_stime)


def instructions(python):
    if not shutil.which("perf"):
        return None
    done = subprocess.run(["perf", "stat", "-x,", "-r", "20", "-e", "instructions:u", python, "-c",
                           "pass"], env={**environment(), "PYTHONHASHSEED": "0"},
                          capture_output=True, text=True)
    words = done.stderr.strip().split(",")
    return int(words[0]) if done.returncode == 0 and words[0].isdigit() else None


def system_calls(python):
    if not shutil.which("strace"):
        return None
    with tempfile.NamedTemporaryFile() as out:
        done = subprocess.run(["strace", "-f", "-o", out.name, python, "-c", "pass"],
                              env=environment(), capture_output=True)
        return len(out.read().splitlines()) if done.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--python", default=sys.executable)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pythons = {}
        for name in ("with", "without"):
            venv = os.path.join(folder, name)
            subprocess.run([arguments.python, "-m", "venv", "--without-pip", venv], check=True)
            pythons[name] = os.path.join(venv, "bin", "python")
        packages = subprocess.run(
            [pythons["with"], "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            env=environment(), capture_output=True, text=True, check=True).stdout.strip()
        shutil.copy(LINE, packages)
        shutil.copytree(LINE.parent, os.path.join(packages, "firn"))
        taken = {name: [] for name in pythons}
        for pair in range(arguments.pairs + 5):
            for name in sorted(pythons, reverse=pair % 2 == 1):
                times = start(pythons[name])
                if pair >= 5:
                    taken[name].append(times)
        for index, what in enumerate(("wall", "processor")):
            sides = {name: [times[index] for times in taken[name]] for name in pythons}
            pairs = [a - b for a, b in zip(sides["with"], sides["without"])]
            error = statistics.stdev(pairs) / len(pairs) ** 0.5
            print("%-9s ms: with %.3f, without %.3f (medians); in pairs %+.3f (median), "
                  "%+.3f +- %.3f (mean, standard error)" % (
                      what, *(statistics.median(sides[name]) for name in ("with", "without")),
                      statistics.median(pairs), statistics.mean(pairs), error))
        for what, count in (("instructions:u", instructions), ("system calls", system_calls)):
            counts = {name: count(pythons[name]) for name in pythons}
            if None not in counts.values():
                print("%s: with %s, without %s: %+d" % (
                    what, counts["with"], counts["without"], counts["with"] - counts["without"]))
        inside = subprocess.run([pythons["without"], "-c", INSIDE, str(LINE)], env=environment(),
                                capture_output=True, text=True, check=True).stdout.split()
        print("the line alone: %.1f us; read, compiled and run: %.1f us"
              % tuple(int(word) / 1000 for word in inside))


if __name__ == "__main__":
    main()
