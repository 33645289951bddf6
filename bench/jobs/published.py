"""The cases of two published systems, on models of their machines.

TERAIO: Llama 3 8B, Granite 8B and Llama 3 70B on two H100 (tensor parallel 2), 16 GB/s of SSD for
each GPU and no host memory. Its batch and sequence are not known here: several are run, with
kernels at a roofline's speed and at what published training reaches on this GPU. Its figure, 80.7 %
of the speed with unlimited memory, is the mean over its cases. Beside Firn runs `--policy greedy`,
a plan like the one it publishes, on the same trace. teraio_way(): the steps that are larger than
6 x 2,048 tokens in parts whose gradients accumulate, recomputed, or in L2L's order (relay_way.py).
teraio_bandwidth(): Llama 3 8B, 8 x 2,048 in one batch, with fewer and with more SSDs.

SSDTrain: GPT, BERT and T5 at hidden 8192, 12288 and 16384 with 4, 3 and 2 layers, batch 16 of 1,024
tokens, on two A100 of 40 GB (tensor parallel 2) with four Optane SSDs. Its figure is how much less
memory activations take at their peak with the step time unchanged: 28 to 47 %. Here: the least
budget, by bisection, at which a step takes at most 1 % longer. Once with everything movable, once
with weights and the optimizer's states outside of the budget and never moved, as in SSDTrain; each
of them by moving alone, and by making again as well.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Callable

import gpus
import job_traces
from runs import Runner

TERAIO_PART, SSDTRAIN_PARTS = 0.807, (0.28, 0.47)
# Batch, and tokens of a sequence.
TERAIO_CASES = tuple((job, machine, batch, 2048) for job, batches in (
    ("llama3-8b-tp2", (6, 8, 16)), ("granite-8b-tp2", (6, 8, 16)), ("llama3-70b-tp2", (4, 8)))
    for batch in batches for machine in ("teraio", "teraio-titan"))
TERAIO_LENGTH = 2048
# Sequences of a step, the way (record.py), and into how many parts the batch goes.
TERAIO_WAYS = tuple((job, machine, batch, way, parts) for job, ways in (
    ("llama3-8b-tp2", ((8, "plain", 2), (8, "plain", 4), (8, "recompute", 1), (8, "relay", 4))),
    ("granite-8b-tp2", ((8, "plain", 2), (8, "plain", 4), (8, "recompute", 1), (8, "relay", 4))),
    ("llama3-70b-tp2", ((8, "recompute", 1), (8, "relay", 2), (32, "relay", 4))))
    for batch, way, parts in ways for machine in ("teraio", "teraio-titan"))
TERAIO_SSDS = (2, 4, 6, 8, 12, 16)      # of 4 GB/s each way: 8 to 64 GB/s
SSDTRAIN_JOBS = tuple(f"{name}-{hidden}-tp2" for name in ("gpt", "bert", "t5")
                      for hidden in (8192, 12288, 16384))
ROK_BATCHES = (4, 8, 16)
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


def teraio_way(runner: Runner, job: str, name: str, batch: int, way: str, parts: int) -> \
        dict[str, Any]:
    """The ideal is the same program with unlimited memory, as TERAIO's is."""
    machine = gpus.MACHINES[name]
    row: dict[str, Any] = {"job": job, "machine": name, "batch": batch, "length": TERAIO_LENGTH,
                           "way": way, "micro_batches": parts, "times": "roofline",
                           "words": machine.words(), "budget_bytes": machine.budget_bytes}
    found = runner.record(job, machine.gpu.name, way, batch=batch, length=TERAIO_LENGTH,
                          micro_batches=parts)
    if found.error:
        return {**row, "error": found.error}
    row |= {key: found.summary[key] for key in ("seconds", "peak_bytes", "persistent_bytes")}
    for policy in ("lifetime", "greedy"):
        row[policy] = runner.simulate(found.prefix, machine.budget_bytes, machine, policy)
    return row


def teraio_bandwidth(runner: Runner, name: str, ssds: int, job: str = "llama3-8b-tp2",
                     batch: int = 8) -> dict[str, Any]:
    """A step that exceeds the memory, at so many SSDs for the GPU."""
    machine = dataclasses.replace(gpus.MACHINES[name], ssds=ssds)
    row: dict[str, Any] = {"job": job, "machine": name, "batch": batch, "length": TERAIO_LENGTH,
                           "ssds": ssds, "write_gbs": machine.write_gbs,
                           "read_gbs": machine.read_gbs, "times": "roofline",
                           "words": machine.words(), "budget_bytes": machine.budget_bytes}
    found = runner.record(job, machine.gpu.name, batch=batch, length=TERAIO_LENGTH)
    if found.error:
        return {**row, "error": found.error}
    row |= {key: found.summary[key] for key in ("seconds", "peak_bytes", "persistent_bytes")}
    for column in ("bound", "bound_remake", "remake"):
        row[column] = getattr(runner, column)(found.prefix, machine.budget_bytes, machine)
    row["lifetime"] = runner.simulate(found.prefix, machine.budget_bytes, machine)
    return row


def teraio_lifetimes(runner: Runner, job: str) -> dict[str, Any]:
    """TERAIO's study of its own jobs: how little of the memory is in use at a time."""
    machine = gpus.MACHINES["teraio-titan"]
    row: dict[str, Any] = {"job": job, "machine": machine.name, "batch": 8,
                           "length": TERAIO_LENGTH, "times": "roofline", "words": machine.words()}
    found = runner.record(job, machine.gpu.name, batch=8, length=TERAIO_LENGTH)
    if found.error:
        return {**row, "error": found.error}
    return {**row, **runner.lifetimes(found.prefix)}


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


def made_alone(runner: Runner, prefix: str) -> tuple[str, dict[str, Any]]:
    """The trace without weights and the optimizer's states, and what is known of it."""
    of_step = job_traces.without_persistent(runner.trace(prefix))
    job_traces.write(of_step, prefix + "-made")
    return prefix + "-made", job_traces.summary(of_step)


def rok(runner: Runner, job: str, batches: tuple[int, ...] = ROK_BATCHES) -> dict[str, Any]:
    """SSDTrain's recompute, offload, keep curve: for each batch the activations' peak and the
    sequences a second with all of them recomputed (every layer), kept, moved by Firn, and moved or
    made again by it (the last two at the least budget at which a step takes at most 1 % longer)."""
    machine = gpus.MACHINES["ssdtrain"]
    row: dict[str, Any] = {"job": job, "machine": machine.name, "times": "roofline",
                           "words": machine.words(), "points": []}
    for batch in batches:
        for way in ("keep", "recompute"):
            found = runner.record(job, machine.gpu.name, "plain" if way == "keep" else way,
                                  batch=batch)
            if found.error:
                return {**row, "error": found.error}
            prefix, made = made_alone(runner, found.prefix)
            row["points"].append({"batch": batch, "way": way, "bytes": made["peak_bytes"],
                                  "sequences_s": batch / found.summary["seconds"]})
            for name, run in (("offload", runner.simulate), ("remake", runner.remake)):
                if way != "keep":
                    continue
                least = least_or_why(lambda budget, run=run: run(prefix, budget, machine), made)
                if "error" in least:
                    return {**row, "error": least["error"]}
                ran = run(prefix, least["budget_bytes"], machine)
                row["points"].append({"batch": batch, "way": name, "bytes": least["budget_bytes"],
                                      "sequences_s": batch / ran["steady_s"],
                                      "bytes_written": ran["bytes_written"]})
    return row


def ssdtrain(runner: Runner, job: str) -> dict[str, Any]:
    machine = gpus.MACHINES["ssdtrain"]
    row: dict[str, Any] = {"job": job, "times": "roofline", "words": machine.words()}
    found = runner.record(job, machine.gpu.name)
    if found.error:
        return {**row, "error": found.error}
    prefix, made = made_alone(runner, found.prefix)
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
