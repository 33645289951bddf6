#!/usr/bin/env python3
"""Lifetimes against age in programs that run: the demo's GPT and a residual convolutional network,
at half the memory they need, on the software GPU with a modelled link and a modelled SSD.

  bench/lifetimes/live.py [--steps 7] [--ratio 2] [--host 128MiB] [--only gpt|convnet] [--json]

Kernels run on this machine's processor, so that a step takes seconds. The modelled speeds are
chosen to fit: to move what does not fit out to the SSD and in again, one after the other, takes
1/RATIO of an unlimited step, and the link is 5 times as fast as the SSD, as 16 GiB/s are beside
3.2 GiB/s.
Figures are of steps after the period was found, and of the same steps by age. Other work on this
machine makes steps longer, and so transfers easier to hide, or the other way round.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "pytorch_plugin" / "runs"))
import script_runs  # noqa: E402

MIB = 1 << 20
LINK_OVER_SSD = 5


@dataclasses.dataclass
class Program:
    script: pathlib.Path
    arguments: tuple
    layer: str = ""  # the class of modules that a user would recompute


PROGRAMS = {
    "gpt": Program(ROOT / "bench/demo/train_gpt.py", ()),
    "convnet": Program(script_runs.SCRIPTS / "convnet_bn_sgd_checkpoint.py",
                       ("--batch", 32, "--blocks", 6)),
}


@dataclasses.dataclass
class Measured:
    """One run: what its script computed, and what was noted at the end of each of its steps."""
    results: object
    notes: list
    run: script_runs.Run

    def steps_s(self, last=None):
        """Of all steps but the first, or of the last ones."""
        times = [note["time_s"] for note in self.notes[-1 - last if last else 0:]]
        return [b - a for a, b in zip(times, times[1:])]

    def step_s(self):
        """The fastest: others may use this machine too."""
        return min(self.steps_s())

    def steps_since_found(self):
        """How many steps there were after the first that began with the period known."""
        found = [note["period_found"] for note in self.notes]
        return len(found) - found.index(True) - 2 if True in found else 0

    def in_last(self, steps):
        """What was added to the statistics in a step, on average, in the last `steps`."""
        first, last = self.notes[-1 - steps], self.notes[-1]
        return {key: (last[key] - first[key]) / steps for key in last if key != "period_found"}


def measure(paths, folder, program, steps, recompute=False, **firn):
    """`firn`: of run_with_firn; none for a run with PyTorch's own allocator."""
    folder = pathlib.Path(tempfile.mkdtemp(dir=folder))
    notes = folder / "notes.jsonl"
    arguments = [notes, *(["--recompute", program.layer] if recompute else []), program.script,
                 "--steps", steps, *program.arguments]
    out = folder / "out.json"
    if program.script.parent.name == "demo":
        arguments += ["--out", out]
    script = str(ROOT / "bench/lifetimes/steps.py")
    if firn:
        run = script_runs.run_with_firn(paths, folder, script, *arguments, **firn)
    else:
        run = script_runs.run_native(paths, folder, script, *arguments)
    if run.status != 0:
        raise RuntimeError(f"{program.script.name} ended with {run.status}:\n{run.text}")
    results = run.results()
    if out.exists():
        written = json.loads(out.read_text())
        results = {key: written[key] for key in ("losses", "parameters_sha256")}
    return Measured(results, [json.loads(line) for line in notes.read_text().splitlines()], run)


@dataclasses.dataclass
class Machine:
    budget: int
    link_bytes_s: int
    ssd_bytes_s: int
    host: str

    @staticmethod
    def fit(unlimited, fraction, ratio, host, link_over_ssd=LINK_OVER_SSD):
        peak = unlimited.notes[-1]["peak_bytes"]
        budget = int(peak * fraction) // script_runs.GRANULE * script_runs.GRANULE
        ssd = max(int(2 * (peak - budget) * ratio / unlimited.step_s()) // MIB, 1) * MIB
        return Machine(budget, link_over_ssd * ssd, ssd, host)

    def words(self, directory, policy):
        """For measure()."""
        ssd, link = f"{self.ssd_bytes_s >> 20}MiB/s", f"{self.link_bytes_s >> 20}MiB/s"
        return {"budget": self.budget, "dirs": [directory], "host": self.host,
                "environment": {"FIRN_POLICY": policy, "FIRN_GPU_LINK": link,
                                "FIRN_GPU_LINK_LATENCY": "10us", "FIRN_TEST_STORE_READ": ssd,
                                "FIRN_TEST_STORE_WRITE": ssd, "FIRN_TEST_STORE_LATENCY": "100us"}}


def compare(paths, folder, directory, program, unlimited, machine):
    """{"age": ..., "lifetime": ...}: steady figures per step, and whether the bits are equal."""
    runs = {policy: measure(paths, folder, program, len(unlimited.notes),
                            **machine.words(directory, policy)) for policy in ("age", "lifetime")}
    steady = runs["lifetime"].steps_since_found()
    if steady < 1:
        raise RuntimeError(f"the period was found too late: {len(unlimited.notes)} steps")
    return {policy: {**run.in_last(steady), "steps": steady,
                     "equal": run.results == unlimited.results} for policy, run in runs.items()}


def report(name, found):
    machine, peak, step_s = Machine(**found["machine"]), found["peak"], found["unlimited_step_s"]
    age, lifetime = found["age"], found["lifetime"]
    both = lifetime["spilled_bytes"] + lifetime["prefetched_bytes"] + lifetime["faulted_bytes"]
    part = both / machine.ssd_bytes_s / step_s
    print(f"\n{name}: peak {peak >> 20} MiB, budget {machine.budget >> 20} MiB, host memory "
          f"{machine.host}, unlimited step {step_s:.2f} s\n"
          f"  SSD {machine.ssd_bytes_s >> 20} MiB/s each way, link {machine.link_bytes_s >> 20} "
          f"MiB/s each way; what moves takes the SSD {part:.2f} of an unlimited step, both ways")
    print(f"  {'per step':9} {'seconds':>8} {'stall_s':>8} {'spilled':>9} {'faulted':>9} "
          f"{'prefetched':>11} {'bits':>8}")
    for policy, each in (("age", age), ("lifetime", lifetime)):
        print(f"  {policy:9} {each['time_s']:8.2f} {each['stall_s']:8.3f} "
              f"{each['spilled_bytes'] / MIB:5.0f} MiB {each['faulted_bytes'] / MIB:5.0f} MiB "
              f"{each['prefetched_bytes'] / MIB:7.0f} MiB "
              f"{'equal' if each['equal'] else 'DIFFER':>8}")
    print(f"  stalls with lifetimes: {lifetime['stall_s'] / age['stall_s']:.3f} of those with age, "
          f"over {age['steps']} steps")


def run(command, description, programs, compare, report, steps, ratio, host="128MiB",
        link_over_ssd=LINK_OVER_SSD):
    """A command that compares runs of programs on one machine, which fits each of them. Kernels
    have one core of two, so that copies and the program have the other.
    compare(paths, folder, directory, program, unlimited, machine): a dictionary of what it found."""
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--fraction", type=float, default=0.5, help="of the peak: the budget")
    parser.add_argument("--ratio", type=float, default=ratio,
                        help="unlimited step over the time to move what does not fit out and in")
    parser.add_argument("--host", default=host, help="pinned host memory")
    parser.add_argument("--only", choices=programs)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // 2))

    def measured(paths, folder, name):
        directory = pathlib.Path(folder) / "spill"
        directory.mkdir()
        unlimited = measure(paths, folder, programs[name], options.steps)
        machine = Machine.fit(unlimited, options.fraction, options.ratio, options.host,
                              link_over_ssd)
        found = compare(paths, folder, directory, programs[name], unlimited, machine)
        return {"machine": dataclasses.asdict(machine), "peak": unlimited.notes[-1]["peak_bytes"],
                "unlimited_step_s": unlimited.step_s(), **found}

    script_runs.measure_programs(command, options, programs, measured, report)


def main():
    run("live.py", __doc__, PROGRAMS, compare, report, steps=7, ratio=2)


if __name__ == "__main__":
    main()
