#!/usr/bin/env python3
"""Making again against moving alone, and against recomputing by the user's hand, in programs that
run at half the memory they need, on the software GPU with a modelled link.

  bench/lifetimes/remake_live.py [--steps 24] [--ratio .6] [--fraction .5] [--host 4GiB]
                                 [--only NAME] [--json]

Each program runs with PyTorch's own allocator; with Firn, which only moves; with firn_remake:1;
and with its layers under torch.utils.checkpoint: with PyTorch's own allocator, and with Firn at the
same budget if it needs more. A step is the fastest of the last eight; parts are of the fastest
unlimited one. The link takes 1/RATIO of an unlimited step to move what does not fit out and in
again, one after the other. On a GPU an elementwise kernel is cheaper beside a product, and beside
the link.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "lifetimes"))
import live  # noqa: E402

LAST = 8
DEMO, SCRIPTS = live.PROGRAMS["gpt"].script, live.script_runs.SCRIPTS
PROGRAMS = {
    # (Of whole frames of 2 MiB: 4 to 16 MiB each activation.)
    "gpt": live.Program(DEMO, ("--batch", 16), "Layer"),
    "convnet": live.Program(SCRIPTS / "convnet_bn_sgd_checkpoint.py",
                            ("--batch", 64, "--blocks", 6), "Residual"),
    "deep": live.Program(SCRIPTS / "deep.py", ("--rows", 8192)),
    "hf": live.Program(SCRIPTS / "hf_trainer.py", ("--batch", 16), "GPT2Block"),
}


def compare(paths, folder, directory, program, unlimited, machine):
    """{"moving": ..., "again": ..., "recomputed": ...}, and "both" if the last does not fit."""
    def measured(remake, **words):
        words = {**machine.words(directory, "lifetime"), **words}
        words["environment"]["FIRN_REMAKE"] = remake
        return live.measure(paths, folder, program, len(unlimited.notes), **words)

    def figures(run):
        return {"step_s": run.step_s(LAST), "equal": run.results == unlimited.results}

    def moved(run):
        device = run.run.device()
        return {**figures(run), **run.in_last(LAST), "remakes": device["remakes"],
                "remake": device["remake"]}

    found = {"moving": moved(measured("0")), "again": moved(measured("1"))}
    if program.layer:
        alone = live.measure(paths, folder, program, LAST + 2, recompute=True)
        found["recomputed"] = {**figures(alone), "peak": alone.notes[-1]["peak_bytes"],
                               "equal": None}
        if found["recomputed"]["peak"] > machine.budget:
            found["both"] = moved(measured("0", recompute=True))
    return found


def line(name, whole, of, words):
    bits = {True: "equal", False: "DIFFER", None: ""}[of["equal"]]
    return (f"  {name:10} {of['step_s']:6.2f} s  {whole / of['step_s']:.2f} of unlimited  "
            f"{words:>24}  {bits}")


def report(name, found):
    machine, whole = found["machine"], found["unlimited_step_s"]
    print(f"{name}: peak {found['peak'] >> 20} MiB, budget {machine['budget'] >> 20} MiB, link "
          f"{machine['link_bytes_s'] >> 20} MiB/s; unlimited {whole:.2f} s")
    for way in ("moving", "again", "both"):
        if way not in found:
            continue
        of = found[way]
        moved = (of["spilled_bytes"] + of["prefetched_bytes"] + of["faulted_bytes"]) / live.MIB
        print(line(way, whole, of, f"{moved:.0f} MiB moved"))
    if "recomputed" in found:
        of = found["recomputed"]
        fits = "fits" if of["peak"] <= machine["budget"] else "does not fit"
        print(line("recomputed", whole, of, f"{of['peak'] >> 20} MiB, {fits}"))
    chosen = found["again"]["remake"]
    print(f"  made again: {chosen['results']} results, {chosen['bytes'] / live.MIB:.0f} MiB; "
          f"iterations by its own clock {chosen['iteration_before_s']:.2f} s, then "
          f"{chosen['iteration_s']:.2f} s", flush=True)


if __name__ == "__main__":
    live.run("remake_live.py", __doc__, PROGRAMS, compare, report, steps=24, ratio=.6, host="4GiB",
             link_over_ssd=1)
