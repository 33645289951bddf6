#!/usr/bin/env python3
"""What Firn costs a job that fits, beside PyTorch's own allocator, on the software GPU.

  bench/overhead/overhead.py [--rounds 5] [--steps 20] [--only calls|steps] [-- SCRIPT ARGUMENTS...]

calls: nanoseconds of an allocation with its free, both allocators in one process, turn and turn
about (call_times.py; ninja -C build bench/overhead/libcalls.so).
steps: steps of the demo's GPT, the same step with either allocator in turn (in_turn.py). Wall-clock
time is also other programs'; a process's own processor time less so.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import call_times
import in_turn
from in_turn import ROOT, script_runs

WARM = 2
MANY = 1000000


def calls(rounds):
    environment = call_times.environment("native")
    if isinstance(environment, str):
        sys.exit(f"overhead.py: {environment}")
    done = subprocess.run([sys.executable, call_times.__file__, "calls", "--rounds", str(rounds)],
                          env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"nanoseconds, the least and the median of {rounds} rounds in turn\n"
          f"  {'':48} {'native':>14} {'firn':>14} {'firn/native':>12}")
    for case in found["cases"]:
        shown = [f"{min(case[who]):.0f} / {statistics.median(case[who]):.0f}"
                 for who in ("peer", "firn")]
        ratio = statistics.median(a / b for a, b in zip(case["firn"], case["peer"]))
        print(f"  {case['curve'] + ', ' + case['name']:48} {shown[0]:>14} {shown[1]:>14} "
              f"{ratio:12.2f}")
    for reason in found["left_out"]:
        print(f"  left out: {reason}")


def steps(paths, count, arguments):
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        words = (in_turn.DEMO, "--steps", MANY, *arguments)
        run = in_turn.with_firn(paths, pathlib.Path(folder), *words, budget="6GiB")
        pairs = in_turn.in_turn(run, in_turn.native(paths, *words), count + WARM + 1, folder)
    last = pairs[-1][0]
    if last["observing"] or last["spilled_bytes"]:
        sys.exit("overhead.py: the job did not fit")
    print(f"a step of the demo's GPT, firn/native, {count} pairs, median (quartiles); nothing is "
          "observed")
    for key in ("wall_s", "cpu_s"):
        median = statistics.median(base[key] for _, base in pairs[WARM:])
        print(f"  {key:7} {in_turn.show(in_turn.ratios(pairs, key, WARM))}   native {median:.2f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--only", choices=("calls", "steps"))
    parser.add_argument("arguments", nargs="*", help="more of the training script's")
    options = parser.parse_args()
    paths = script_runs.Paths.find()
    if isinstance(paths, str):
        sys.exit(f"overhead.py: {paths}")
    if options.only != "steps":
        if not call_times.LIBRARY.exists():
            sys.exit(f"overhead.py: no {call_times.LIBRARY} (ninja -C build "
                     "bench/overhead/libcalls.so)")
        calls(options.rounds)
    if options.only != "calls":
        steps(paths, options.steps, options.arguments)


if __name__ == "__main__":
    main()
