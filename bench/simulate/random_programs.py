#!/usr/bin/env python3
"""Lifetimes against age on random programs: how much slower is the worst?

  bench/simulate/random_programs.py [--programs 200] [--seed 1] [--firn .venv/bin/firn]

Each program is a trace for `firn simulate`: training steps of layers whose sizes drift, change from
step to step or are drawn anew; evaluation in between; or no order at all. All steps are in one
trace, run once, so what repeats is what the program itself repeats.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import tempfile

MIB = 1 << 20
NO_ROOM = 1       # status of `firn simulate`
SLOWER_MOST = 1.02


class Trace:
    def __init__(self):
        self.tensors, self.kernels = [], []

    def tensor(self, mib, kind="transient"):
        self.tensors.append((len(self.tensors), max(1, int(mib * MIB)), kind))
        return self.tensors[-1][0]

    def kernel(self, us, inputs, outputs):
        self.kernels.append((len(self.kernels), "k", max(1, int(us * 1000)), inputs, outputs))

    def write(self, prefix):
        words = lambda ids: " ".join(map(str, ids))
        with open(f"{prefix}.tensors.csv", "w") as out:
            out.write("tensor,bytes,kind\n")
            out.writelines(f"{i},{b},{k}\n" for i, b, k in self.tensors)
        with open(f"{prefix}.kernels.csv", "w") as out:
            out.write("kernel,name,duration_ns,inputs,outputs\n")
            out.writelines(f"{i},{n},{d},{words(a)},{words(b)}\n"
                           for i, n, d, a, b in self.kernels)


def training_step(trace, weights, moments, sizes, us):
    kept, x = [], trace.tensor(sizes[0])
    trace.kernel(us, [], [x])
    for weight, mib in zip(weights, sizes):
        hidden, y = trace.tensor(mib), trace.tensor(mib)
        trace.kernel(us, [x, weight], [hidden])
        trace.kernel(us / 2, [hidden], [y])
        kept.append((x, hidden))
        x = y
    gradient = trace.tensor(sizes[-1])
    trace.kernel(us, [x], [gradient])
    for (x, hidden), weight, moment, mib in reversed(list(zip(kept, weights, moments, sizes))):
        before, of_weight = trace.tensor(mib), trace.tensor(8)
        trace.kernel(2 * us, [gradient, x, hidden, weight], [before, of_weight])
        trace.kernel(us / 4, [of_weight, moment, weight], [weight, moment])
        gradient = before


def evaluation(trace, weights, sizes, us):
    x = trace.tensor(sizes[0])
    trace.kernel(us, [], [x])
    for weight, mib in zip(weights, sizes):
        y = trace.tensor(mib)
        trace.kernel(us, [x, weight], [y])
        x = y


def program(draw):
    """(the trace, what kind of program it is)"""
    trace = Trace()
    kind = draw.choice(["steady", "drifting", "lengths", "evaluating", "alternating", "random"])
    layers = draw.randint(4, 14)
    weights = [trace.tensor(draw.choice([8, 16, 24]), "persistent") for _ in range(layers)]
    moments = [trace.tensor(16, "persistent") for _ in range(layers)]
    sizes = [draw.uniform(8, 96) for _ in range(layers)]
    us = draw.uniform(500, 8000)
    if kind == "random":
        live = weights + moments
        for _ in range(draw.randint(200, 600)):
            made = trace.tensor(draw.uniform(1, 64))
            trace.kernel(us, draw.sample(live, min(len(live), draw.randint(1, 3))), [made])
            live.append(made)
            if len(live) > 40:
                live.pop(draw.randrange(len(live)))
        return trace, kind
    lengths = [draw.uniform(0.5, 1) for _ in range(4)]
    for step in range(draw.randint(8, 14)):
        factor = {"drifting": 1 + 0.03 * step, "lengths": draw.choice(lengths),
                  "alternating": 1 if step % 2 else 0.6}.get(kind, 1)
        training_step(trace, weights, moments, [s * factor for s in sizes], us * factor)
        if kind == "evaluating" and step % 3 == 2:
            evaluation(trace, weights, sizes, us)
    return trace, kind


def peak_mib(trace):
    first, last = {}, {}
    for i, _, _, inputs, outputs in trace.kernels:
        for tensor in inputs + outputs:
            first.setdefault(tensor, i)
            last[tensor] = i
    change = [0] * (len(trace.kernels) + 1)
    base = 0
    for tensor, size, kind in trace.tensors:
        if kind == "persistent":
            base += size
        elif tensor in first:
            change[first[tensor]] += size
            change[last[tensor] + 1] -= size
    peak = now = base
    for each in change:
        now += each
        peak = max(peak, now)
    return peak / MIB


def simulate(firn, prefix, policy, memory_mib, host):
    """Seconds; None where the program found no room, or a kernel of it none for all its tensors."""
    done = subprocess.run([firn, "simulate", str(prefix), "--gpu-memory", f"{memory_mib}MiB",
                           "--policy", policy, "--iterations", "1", "--json", *host],
                          capture_output=True, text=True)
    if done.returncode == NO_ROOM or "alone exceeds the GPU's" in done.stderr:
        return None
    if done.returncode != 0:
        raise RuntimeError(f"firn simulate ended with {done.returncode}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    return None if found["bytes_in_host"] > 0 else found["iteration_s"][0]


def compare(firn, seed, folder):
    """(the kind of program, seconds by age, seconds by lifetimes) of the program of that seed."""
    draw = random.Random(seed)
    trace, kind = program(draw)
    prefix = pathlib.Path(folder) / "program"
    trace.write(prefix)
    memory = max(320, int(peak_mib(trace) * draw.uniform(0.4, 0.9)))
    host = draw.choice([[], ["--host", "16GiB"]])
    return (kind, *(simulate(firn, prefix, policy, memory, host)
                    for policy in ("age", "lifetime")))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--firn", default=str(pathlib.Path(__file__).resolve().parents[2] /
                                              ".venv/bin/firn"))
    options = parser.parse_args()
    ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seed, options.seed + options.programs):
            kind, age, lifetime = compare(options.firn, seed, folder)
            if age is None or lifetime is None:
                if (age is None) != (lifetime is None):
                    print(f"seed {seed} ({kind}): only one of the two found room")
                continue
            ratios.setdefault(kind, []).append((lifetime / age, seed))
    print(f"{'program':12} {'runs':>5} {'median':>7} {'worst':>7}   time with lifetimes over age")
    for kind, all_of in sorted(ratios.items()):
        worst, seed = max(all_of)
        print(f"{kind:12} {len(all_of):5} {statistics.median(r for r, _ in all_of):7.3f} "
              f"{worst:7.3f}   seed {seed}")
    bad = sum(r > SLOWER_MOST for all_of in ratios.values() for r, _ in all_of)
    print(f"{sum(map(len, ratios.values()))} programs, {bad} slower with lifetimes by more than "
          f"{SLOWER_MOST - 1:.0%}")


if __name__ == "__main__":
    main()
