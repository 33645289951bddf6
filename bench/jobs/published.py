"""The cases of two published systems, on models of their machines.

TERAIO: Llama 3 8B, Granite 8B and Llama 3 70B on two H100 (tensor parallel 2), 16 GB/s of SSD for
each GPU and no host memory. Its batch and sequence are not known here: several are run, with
kernels at a roofline's speed and at what published training reaches on this GPU. Its figure, 80.7 %
of the speed with unlimited memory, is the mean over its cases. Beside Firn runs `--policy greedy`,
a plan like the one it publishes, on the same trace.

SSDTrain: GPT, BERT and T5 at hidden 8192, 12288 and 16384 with 4, 3 and 2 layers, batch 16 of 1,024
tokens, on two A100 of 40 GB (tensor parallel 2) with four Optane SSDs. Its figure is how much less
memory activations take at their peak with the step time unchanged: 28 to 47 %. Here: the least
budget, by bisection, at which a step takes at most 1 % longer. Once with everything movable, once
with weights and the optimizer's states outside of the budget and never moved, as in SSDTrain; each
of them by moving alone, and by making again as well.
"""

from __future__ import annotations

from typing import Any, Callable

import gpus
import job_traces
from runs import Runner

TERAIO_PART, SSDTRAIN_PARTS = 0.807, (0.28, 0.47)
# Batch, and tokens of a sequence.
TERAIO_CASES = tuple((job, machine, batch, 2048) for job, batches in (
    ("llama3-8b-tp2", (6, 8, 16)), ("granite-8b-tp2", (6, 8, 16)), ("llama3-70b-tp2", (4, 8)))
    for batch in batches for machine in ("teraio", "teraio-titan"))
SSDTRAIN_JOBS = tuple(f"{name}-{hidden}-tp2" for name in ("gpt", "bert", "t5")
                      for hidden in (8192, 12288, 16384))
LONGER = 1.01     # than with all in memory: SSDTrain's step time, unchanged


def teraio(runner: Runner, job: str, name: str, batch: int, length: int) -> dict[str, Any]:
    machine = gpus.MACHINES[name]
    row: dict[str, Any] = {"job": job, "machine": name, "batch": batch, "length": length,
                           "times": "roofline", "words": machine.words(),
                           "budget_bytes": machine.budget_bytes}
    found = runner.record(job, machine.gpu.name, batch=batch, length=length)
    if found.error:
        return {**row, "error": found.error}
    row |= {key: found.summary[key] for key in ("seconds", "peak_bytes", "persistent_bytes")}
    for column in ("bound", "bound_remake", "remake"):
        row[column] = getattr(runner, column)(found.prefix, machine.budget_bytes, machine)
    for policy in ("lifetime", "greedy"):
        row[policy] = runner.simulate(found.prefix, machine.budget_bytes, machine, policy)
    return row


def least_budget(takes_s: Callable[[int], float], summary: dict[str, Any], steps: int = 6) -> int:
    """By bisection between what the largest kernel needs and all."""
    low, high = summary["largest_kernel_bytes"], summary["peak_bytes"]
    for _ in range(steps):
        middle = (low + high) // 2
        if takes_s(middle) <= summary["seconds"] * LONGER:
            high = middle
        else:
            low = middle
    return high


def least_or_why(run: Callable[[int], dict[str, Any]], summary: dict[str, Any]) -> dict[str, Any]:
    """Why not, where a step does not run with all of its memory either."""
    error = run(summary["peak_bytes"]).get("error")
    if error:
        return {"error": error}
    return {"budget_bytes": least_budget(
        lambda budget: run(budget).get("steady_s", float("inf")), summary)}


def ssdtrain(runner: Runner, job: str) -> dict[str, Any]:
    machine = gpus.MACHINES["ssdtrain"]
    row: dict[str, Any] = {"job": job, "times": "roofline", "words": machine.words()}
    found = runner.record(job, machine.gpu.name)
    if found.error:
        return {**row, "error": found.error}
    trace = runner.trace(found.prefix)
    of_step = job_traces.without_persistent(trace)
    prefix = found.prefix + "-made"
    job_traces.write(of_step, prefix)
    made = job_traces.summary(of_step)
    row |= {key: found.summary[key] for key in ("seconds", "peak_bytes", "persistent_bytes")}
    row["activations_bytes"] = made["peak_bytes"]
    for name, of, summary in (("activations", prefix, made), ("all", found.prefix, found.summary)):
        for way, run in (("", runner.simulate), ("_remake", runner.remake),
                         ("_bound", runner.bound), ("_bound_remake", runner.bound_remake)):
            found = least_or_why(lambda budget, of=of, run=run: run(of, budget, machine), summary)
            if "error" in found:
                return {**row, "error": found["error"]}
            row[name + way] = {**found, "down": (summary["peak_bytes"] - found["budget_bytes"])
                               / made["peak_bytes"]}
    return row
