#!/usr/bin/env python3
"""Making again against moving alone, in programs that run at half the memory they need, on the
software GPU with a modelled link and a modelled SSD (as live.py).

  bench/lifetimes/remake_live.py [--steps 24] [--ratio 1] [--fraction .5] [--host 128MiB]
                                 [--only NAME] [--json]

Each program runs with PyTorch's own allocator, then with Firn, which only moves, then with
firn_remake:1. A step is the fastest of the last six; parts are of the fastest unlimited one. Kernels and
copies share this machine's processor, so that moving costs more than the modelled speeds say; and
an elementwise kernel is cheaper beside a product on a GPU than here.
"""

import pathlib
import sys

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


def compare(paths, folder, directory, program, unlimited, machine):
    """{"moving": ..., "again": ...}"""
    found = {}
    for way, remake in (("moving", "0"), ("again", "1")):
        words = machine.words(directory, "lifetime")
        words["environment"]["FIRN_REMAKE"] = remake
        run = live.measure(paths, folder, program, len(unlimited.notes), **words)
        device = run.run.device()
        found[way] = {"step_s": run.step_s(LAST), "equal": run.results == unlimited.results,
                      **run.in_last(LAST), "remakes": device["remakes"],
                      "remake": device["remake"]}
    return found


def report(name, found):
    machine, whole = found["machine"], found["unlimited_step_s"]
    print(f"{name}: peak {found['peak'] >> 20} MiB, budget {machine['budget'] >> 20} MiB, SSD "
          f"{machine['ssd_bytes_s'] >> 20} MiB/s, link {machine['link_bytes_s'] >> 20} MiB/s; "
          f"unlimited {whole:.2f} s")
    for way in ("moving", "again"):
        of = found[way]
        moved = (of["spilled_bytes"] + of["prefetched_bytes"] + of["faulted_bytes"]) / live.MIB
        print(f"  {way:7} {of['step_s']:6.2f} s  {whole / of['step_s']:.2f} of unlimited  "
              f"{moved:6.0f} MiB moved  {'equal' if of['equal'] else 'DIFFER'}")
    chosen = found["again"]["remake"]
    print(f"  made again: {chosen['results']} results, {chosen['bytes'] / live.MIB:.0f} MiB; "
          f"iterations by its own clock {chosen['iteration_before_s']:.2f} s, then "
          f"{chosen['iteration_s']:.2f} s", flush=True)


if __name__ == "__main__":
    live.run("remake_live.py", __doc__, PROGRAMS, compare, report, steps=24, ratio=1)
