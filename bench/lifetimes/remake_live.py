#!/usr/bin/env python3
"""Making again against moving alone, and against recomputing by the user's hand, in programs that
run at half the memory they need, on the software GPU with a modelled link.

  bench/lifetimes/remake_live.py [--steps 24] [--ratio .6] [--fraction .5] [--host 4GiB]
                                 [--only NAME] [--json]

Each program runs with PyTorch's own allocator; with Firn, which only moves; with firn_remake:1;
and with its layers under torch.utils.checkpoint: with PyTorch's own allocator, and with Firn at the
same budget if it needs more. A step is the median of the last eight; parts are of the median of
unlimited steps right before and after that run, for other work slows this machine for minutes. The
link takes 1/RATIO of an unlimited step to move what does not fit out and in again, one after the
other. On a GPU an elementwise kernel is cheaper beside a product, and beside the link.
"""

import pathlib
import statistics
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
    beside = [unlimited.steps_s(LAST)]
    same_as = [unlimited]

    def run(remake=None, **words):
        """Figures of a run, and of the unlimited ones before and after it; with Firn if `remake`
        says what it makes again, "0" or "1"."""
        if remake is not None:
            words = {**machine.words(directory, "lifetime"), **words}
            words["environment"]["FIRN_REMAKE"] = remake
        measured = live.measure(paths, folder, program, len(unlimited.notes), **words)
        beside.append(live.measure(paths, folder, program, LAST + 2).steps_s(LAST))
        found = {"step_s": statistics.median(measured.steps_s(LAST)),
                 "unlimited_s": statistics.median(beside[-2] + beside[-1]), "equal": None}
        if remake is None:
            # (What a layer writes besides, it writes twice: running statistics.)
            same_as[0] = measured
            return {**found, "peak": measured.notes[-1]["peak_bytes"]}
        device = measured.run.device()
        return {**found, **measured.in_last(LAST), "equal": measured.results == same_as[0].results,
                "remakes": device["remakes"], "remake": device["remake"]}

    found = {"moving": run("0"), "again": run("1")}
    if program.layer:
        found["recomputed"] = run(recompute=True)
        if found["recomputed"]["peak"] > machine.budget:
            found["both"] = run("0", recompute=True)
    return found


def line(name, of, words):
    bits = {True: "equal", False: "DIFFER", None: ""}[of["equal"]]
    part = of["unlimited_s"] / of["step_s"]
    return (f"  {name:10} {of['step_s']:6.2f} s  {part:.2f} of {of['unlimited_s']:.2f} s unlimited  "
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
        print(line(way, of, f"{moved:.0f} MiB moved"))
    if "recomputed" in found:
        of = found["recomputed"]
        fits = "fits" if of["peak"] <= machine["budget"] else "does not fit"
        print(line("recomputed", of, f"{of['peak'] >> 20} MiB, {fits}"))
    chosen = found["again"]["remake"]
    print(f"  made again: {chosen['results']} results, {chosen['bytes'] / live.MIB:.0f} MiB; "
          f"iterations by its own clock {chosen['iteration_before_s']:.2f} s, then "
          f"{chosen['iteration_s']:.2f} s", flush=True)


if __name__ == "__main__":
    live.run("remake_live.py", __doc__, PROGRAMS, compare, report, steps=24, ratio=.6, host="4GiB",
             link_over_ssd=1)
