#!/usr/bin/env python3
"""What Firn costs a job that fits, beside PyTorch's own allocator, on the software GPU.

  bench/overhead/overhead.py [--rounds 5] [--steps 20] [--only calls|steps] [-- SCRIPT ARGUMENTS...]

calls: nanoseconds of an allocation with its free, and of an operator that computes nothing, in a
process with either allocator, turn and turn about (ninja -C build bench/overhead/libcalls.so).
steps: steps of the demo's GPT, the same step with either allocator in turn (in_turn.py). Wall-clock
time is also other programs'; a process's own processor time less so.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import in_turn
from in_turn import ROOT, script_runs

WARM = 2
MANY = 1000000
TIMES = 200000
SIZES = {"512 B": 512, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}
LIVE = (10, 1000, 100_000, 1_000_000)
LIBRARY = ROOT / "build/bench/overhead/libcalls.so"


def call_figures():
    """In a process of its own: {what: nanoseconds}, printed."""
    import ctypes

    import torch
    library = ctypes.CDLL(str(LIBRARY))
    for name in ("pair_ns", "live_ns", "view_ns"):
        getattr(library, name).restype = ctypes.c_double
    torch.empty(1, device="cuda")
    times = ctypes.c_int64(TIMES)
    found = {f"allocate and free {name}": library.pair_ns(ctypes.c_uint64(size), times)
             for name, size in SIZES.items()}
    found["one of 10,000 live, mixed up to 512 KiB"] = library.live_ns(
        ctypes.c_int64(10000), ctypes.c_uint64(512 << 10), times)
    for live in LIVE:
        found[f"one of {live:,} live, mixed up to 4 KiB"] = library.live_ns(
            ctypes.c_int64(live), ctypes.c_uint64(4096), times)
    found["a view"] = library.view_ns(times)
    print(json.dumps([torch.cuda.get_allocator_backend(), found]))


def calls(places, rounds, figures_file):
    environment = script_runs.native_environment(places)
    command = [places.python, os.path.abspath(__file__), "--call-figures"]
    found = {"native": [], "firn": []}
    for number in range(rounds):
        for name in sorted(found, reverse=number % 2 == 0):
            extra = {"PYTORCH_CUDA_ALLOC_CONF": "backend:firn"} if name == "firn" else {}
            done = subprocess.run(command, env={**environment, **extra}, check=True,
                                  stdout=subprocess.PIPE, text=True)
            backend, figures = json.loads(done.stdout.splitlines()[-1])
            assert backend == name, backend
            found[name].append(figures)
    print(f"nanoseconds, the least and the median of {rounds} processes in turn\n"
          f"  {'':40} {'native':>14} {'firn':>14} {'firn/native':>12}")
    for what in found["native"][0]:
        each = {name: [figures[what] for figures in found[name]] for name in found}
        shown = {name: f"{min(ns):.0f} / {statistics.median(ns):.0f}" for name, ns in each.items()}
        ratio = statistics.median(a / b for a, b in zip(each["firn"], each["native"]))
        print(f"  {what:40} {shown['native']:>14} {shown['firn']:>14} {ratio:12.2f}")
    if figures_file:
        figures_file.write_text(json.dumps(found))


def steps(places, count, arguments):
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        words = (in_turn.DEMO, "--steps", MANY, *arguments)
        run = in_turn.with_firn(places, pathlib.Path(folder), *words, budget="6GiB")
        pairs = in_turn.in_turn(run, in_turn.native(places, *words), count + WARM + 1, folder)
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
    parser.add_argument("--figures", type=pathlib.Path, help="writes the calls' as JSON")
    parser.add_argument("--call-figures", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help="more of the training script's")
    options = parser.parse_args()
    if options.call_figures:
        call_figures()
        return
    places = script_runs.Places.find()
    if isinstance(places, str):
        sys.exit(f"overhead.py: {places}")
    if options.only != "steps":
        if not LIBRARY.exists():
            sys.exit(f"overhead.py: no {LIBRARY} (ninja -C build bench/overhead/libcalls.so)")
        calls(places, options.rounds, options.figures)
    if options.only != "calls":
        steps(places, options.steps, options.arguments)


if __name__ == "__main__":
    main()
