#!/usr/bin/env python3
"""A job at the edge of its budget: what a step takes, and what moves, where all of the job just
fits, on the software GPU. Each run is paired with one without a limit: the same step of
each in turn (in_turn.py).

  bench/overhead/edge.py [--steps 12] [--only gpt|convnet|lstm] [--policy lifetime] [--json]

At its peak the job has allocated PARTS of the budget; one more budget is the memory that PyTorch's
own allocator reserves for the same job. Figures are of the steps after the first WARM.
"""

import argparse
import pathlib

import in_turn
from in_turn import ROOT, script_runs

WARM = 4
MIB = 1 << 20
ALL = 6 << 30
PARTS = (.95, .98, 1.0)
MANY = 1000000  # steps: the runs are ended from outside

PROGRAMS = {
    "gpt": (ROOT / "bench/demo/train_gpt.py", ()),
    "convnet": (script_runs.SCRIPTS / "convnet_bn_sgd_checkpoint.py", ("--batch", 32)),
    "lstm": (script_runs.SCRIPTS / "lstm.py", ()),
}


def whole(size):
    return -(-int(size) // script_runs.GRANULE) * script_runs.GRANULE


class Job:
    def __init__(self, paths, folder, name, policy, arguments=()):
        self.paths, self.folder, self.policy = paths, pathlib.Path(folder), policy
        script, own = PROGRAMS[name]
        self.words = [str(script), *own, *arguments]
        self.spill = self.folder / "spill"
        self.spill.mkdir(exist_ok=True)

    def native(self):
        return in_turn.native(self.paths, *self.words, "--steps", MANY)

    def with_firn(self, budget):
        return in_turn.with_firn(self.paths, self.folder, *self.words, "--steps", MANY,
                                 budget=budget, dirs=[self.spill], host="256MiB",
                                 environment={"FIRN_POLICY": self.policy})

    def unlimited(self, steps=WARM):
        """What was noted at the end of a step with all the memory there is, and of a native one."""
        return in_turn.in_turn(self.with_firn(ALL), self.native(), steps, self.folder)[-1]

    def beside_unlimited(self, run, steps):
        return in_turn.in_turn(run, self.with_firn(ALL), steps, self.folder)


def measure(job, steps, parts):
    free, native = job.unlimited()
    budgets = {f"{part:.0%} allocated": whole(free["peak_allocated_bytes"] / part)
               for part in parts}
    budgets["native's reserved"] = whole(native["reserved_peak"])
    pairs = {"native": job.beside_unlimited(job.native(), steps)}
    pairs.update({name: job.beside_unlimited(job.with_firn(budget), steps)
                  for name, budget in budgets.items()})
    return {"native_allocated": native["allocated_peak"],
            "native_reserved": native["reserved_peak"], "held": free["peak_device_bytes"],
            "allocated": free["peak_allocated_bytes"], "budgets": budgets, "pairs": pairs}


def report(name, found):
    print(f"\n{name}: native allocates {found['native_allocated'] / MIB:.0f} MiB and reserves "
          f"{found['native_reserved'] / MIB:.0f} MiB; Firn, unlimited, allocates "
          f"{found['allocated'] / MIB:.0f} MiB and holds {found['held'] / MIB:.0f} MiB")
    print(f"  {'':18} {'MiB':>6} {'wall/unlimited':>24} {'cpu/unlimited':>24} "
          f"{'spilled':>9} {'written':>9} {'faulted':>9} {'prefetched':>10} {'evicted':>7} "
          f"{'watched':>7}")
    for run, each in found["pairs"].items():
        shown = [in_turn.show(in_turn.ratios(each, key, WARM)) for key in ("wall_s", "cpu_s")]
        line = f"  {run:18} {found['budgets'].get(run, 0) / MIB:6.0f} {shown[0]:>24} {shown[1]:>24}"
        if run != "native":
            moved = [in_turn.in_step(each, key, WARM) / MIB for key in
                     ("spilled_bytes", "written_bytes", "faulted_bytes", "prefetched_bytes")]
            line += "".join(f" {mib:5.1f} MiB" for mib in moved)
            line += (f" {in_turn.in_step(each, 'evictions', WARM):7.1f}"
                     f" {'yes' if each[-1][0]['observing'] else 'no':>7}")
        print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", choices=PROGRAMS)
    parser.add_argument("--policy", default="lifetime", choices=("age", "lifetime"))
    parser.add_argument("--part", type=float, action="append", help="of the budget that is allocated")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("arguments", nargs="*", help="more of the scripts' (after --)")
    options = parser.parse_args()

    def measured(paths, folder, name):
        job = Job(paths, folder, name, options.policy, options.arguments)
        return measure(job, options.steps, options.part or PARTS)

    script_runs.measure_programs("edge.py", options, PROGRAMS, measured, report)


if __name__ == "__main__":
    main()
