#!/usr/bin/env python3
"""What is made again against moving alone, in programs that run at half the memory they need, on the
software GPU with a modelled link and a modelled SSD (as live.py).

  bench/lifetimes/remake_live.py [--steps 24] [--ratio 1] [--fraction .5] [--host 128MiB]
                                 [--only NAME] [--json]

Each program runs with PyTorch's own allocator, then with Firn, which only moves, then with
firn_remake:1. A step is the fastest of the last six; parts are of the unlimited step. Kernels and
copies share this machine's processor, so that moving costs more than the modelled speeds say; and
an elementwise kernel is cheaper beside a product on a GPU than here.
"""

import argparse
import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "lifetimes"))
import live  # noqa: E402

LAST = 6
DEMO, SCRIPTS = live.PROGRAMS["gpt"].script, live.script_runs.SCRIPTS
PROGRAMS = {
    "gpt": live.Program(DEMO, ()),
    "gpt-wide": live.Program(DEMO, ("--width", 512, "--length", 128, "--batch", 24)),
    "convnet": live.PROGRAMS["convnet"],
    "deep": live.Program(SCRIPTS / "deep.py", ("--rows", 8192)),
    "hf": live.Program(SCRIPTS / "hf_trainer.py", ()),
}


def step_s(measured):
    times = [note["time_s"] for note in measured.notes]
    return min(b - a for a, b in zip(times[-1 - LAST:], times[-LAST:]))


def compare(paths, folder, directory, program, options):
    unlimited = live.measure(paths, folder, program, options.steps)
    machine = live.Machine.fit(unlimited, options.fraction, options.ratio, options.host)
    found = {"unlimited_s": step_s(unlimited), "budget": machine.budget,
             "peak": unlimited.notes[-1]["peak_bytes"], "ssd_bytes_s": machine.ssd_bytes_s}
    for remake in ("0", "1"):
        words = machine.words(directory, "lifetime")
        words["environment"]["FIRN_REMAKE"] = remake
        run = live.measure(paths, folder, program, options.steps, **words)
        device = run.run.device()
        found["again" if remake == "1" else "moving"] = {
            "step_s": step_s(run), "equal": run.results == unlimited.results,
            **run.in_last(LAST), "remakes": device["remakes"], "remake": device["remake"]}
    return found


def report(name, found):
    whole = found["unlimited_s"]
    print(f"{name}: peak {found['peak'] >> 20} MiB, budget {found['budget'] >> 20} MiB, SSD "
          f"{found['ssd_bytes_s'] >> 20} MiB/s, link {live.LINK_OVER_SSD} times that; unlimited "
          f"{whole:.2f} s")
    for way in ("moving", "again"):
        of = found[way]
        moved = (of["spilled_bytes"] + of["prefetched_bytes"] + of["faulted_bytes"]) / live.MIB
        print(f"  {way:7} {of['step_s']:6.2f} s  {whole / of['step_s']:.2f} of unlimited  "
              f"{moved:6.0f} MiB moved  {'equal' if of['equal'] else 'DIFFER'}")
    chosen = found["again"]["remake"]
    print(f"  made again: {chosen['results']} results, {chosen['bytes'] / live.MIB:.0f} MiB; "
          f"iterations by its own clock {chosen['iteration_before_s']:.2f} s, then "
          f"{chosen['iteration_s']:.2f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--fraction", type=float, default=0.5, help="of the peak: the budget")
    parser.add_argument("--ratio", type=float, default=1,
                        help="unlimited step over the time to move what does not fit out and in")
    parser.add_argument("--host", default="128MiB", help="pinned host memory")
    parser.add_argument("--only", choices=PROGRAMS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    paths = live.script_runs.Paths.find()
    if isinstance(paths, str):
        sys.exit(f"remake_live.py: {paths}")
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    document = {}
    with tempfile.TemporaryDirectory(dir=build) as folder:
        directory = pathlib.Path(folder) / "spill"
        directory.mkdir()
        for name in [options.only] if options.only else PROGRAMS:
            document[name] = compare(paths, folder, directory, PROGRAMS[name], options)
            if not options.json:
                report(name, document[name])
    if options.json:
        print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
