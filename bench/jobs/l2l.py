"""L2L's case (Pudipeddi et al., arXiv 2002.05645): a step in other orders, at budgets below what
it takes. Its own figures are of BERT-Large on a V100 of 16 GB: memory down by 45 %, throughput up
by 40 %, a device batch of 256, memory that does not grow with depth.

orders(): jobs on the H200 as they are, recomputed, with eager updates (also with values that Firn
makes again), and in L2L's order (relay), each as a part of the plain job's speed with unlimited
memory. batches(), depth(): BERT-Large on the V100: a loop that accumulates gradients in the
largest parts that fit the GPU, beside the relay with Firn; and the relay of more and more layers.
many_parameters(): a GPT of 50 B on the same GPU, with 512 GiB of host memory. hosts(): the relay
with AdamW as it is (states of 16 bits, no master), with a master and states of 32 bits on the
device, and with these at the host, which steps so many parameters a second (gpus.CPUS; record.py
--optimizer host).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Sequence

import gpus
from published import LONGER, least_budget
from runs import Recorded, Runner

ORDER_JOBS = ("gpt-8192", "llama3-8b", "bert-8192", "bert-16384", "t5-8192")
PERCENTS = (50, 30, 20)
# Name: the way, into how many parts the batch goes, and whether Firn may make values again.
ORDERS = {"plain": ("plain", 1, False), "recompute": ("recompute", 1, False),
          "eager": ("eager", 1, False), "eager-remake": ("eager", 1, True),
          **{f"relay-{parts}": ("relay", parts, False) for parts in (2, 4, 8)}}
TARGETS = {"gpt-8192": 0.67, "llama3-8b": 0.77, "bert-16384": 0.68}      # at 20 %
BATCHES = (2, 16, 64, 256)
PART = 16                      # sequences of a relay's parts, of LENGTH tokens
DEEP_BATCH, DEEP_PARTS = 32, 2
# Through all depths: this budget, which is little above what the largest kernel needs.
DEEP_BUDGET = 1800 << 20
BISECTED = 48                  # layers up to which the least budget is looked for, too
AHEAD = 8                      # kernels that a program enqueues ahead of the running one
LENGTH = 512
MANY = ("gpt-50b", 4, 512)     # the job, its parts, GiB of host memory (the paper's)


@dataclasses.dataclass(frozen=True)
class HostCase:
    """A relay in so many parts, at budgets that are parts of the plain job's memory (in percent) or
    bytes; `cpus` step at the host."""
    job: str
    machine: str
    parts: int
    budgets: tuple[int, ...]
    cpus: tuple[str, ...]
    optimizers: tuple[str, ...] = ("plain", "fp32", "host")
    batch: int = 0
    host_gib: int = 0          # 0: as the machine has


V100_HOST_BYTES = 2 << 30      # what the relay of BERT-Large runs in, and some more
HOST_CASES = (
    *(HostCase(job, "h200", 2, (50, 20), ("2g", "5g", "10g")) for job in ("gpt-8192",
                                                                         "bert-16384")),
    *(HostCase("bert-large", "v100", batch // PART, (V100_HOST_BYTES,), ("1g", "2g"),
               batch=batch) for batch in (32, 256)),
    HostCase(MANY[0], "v100", MANY[1], (gpus.MACHINES["v100"].budget_bytes,), ("1g",),
             ("host",), host_gib=MANY[2]))


def _kept(found: Recorded) -> dict[str, Any]:
    return {key: found.summary[key] for key in (
        "kernels", "seconds", "peak_bytes", "persistent_bytes", "largest_kernel_bytes",
        "host_seconds") if key in found.summary}


def orders(runner: Runner, job: str, machine: gpus.Machine, percents: tuple[int, ...] = PERCENTS,
           names: tuple[str, ...] = tuple(ORDERS)) -> dict[str, Any]:
    plain = runner.record(job, machine.gpu.name)
    row: dict[str, Any] = {"job": job, "machine": machine.name, "words": machine.words(),
                           "times": "roofline"}
    if plain.error:
        return {**row, "error": plain.error}
    row |= _kept(plain)
    row["orders"] = []
    for name in names:
        way, parts, remake = ORDERS[name]
        found = runner.record(job, machine.gpu.name, way,
                              **({"micro_batches": parts} if parts > 1 else {}))
        if found.error:            # as a batch of 4, which has no 8 parts
            row["orders"].append({"order": name, "error": found.error})
            continue
        budgets = []
        for percent in percents:
            budget = plain.summary["peak_bytes"] * percent // 100
            ran = runner.simulate(found.prefix, budget, machine, remake=remake)
            budgets.append({"percent": percent, "budget_bytes": budget, **ran})
        row["orders"].append({"order": name, **_kept(found), "budgets": budgets})
    return row


def least(runner: Runner, found: Recorded, machine: gpus.Machine, steps: int = 5,
          run_ahead: int = 0) -> dict[str, Any]:
    """By bisection: the least budget, within the GPU's memory, at which a step takes at most 1 %
    longer than with unlimited memory, and that run."""
    ran: dict[int, dict[str, Any]] = {}

    def takes_s(budget: int) -> float:
        ran[budget] = runner.simulate(found.prefix, budget, machine, run_ahead=run_ahead)
        return ran[budget].get("steady_s", math.inf)

    most = min(machine.budget_bytes, found.summary["peak_bytes"])
    if takes_s(most) > found.summary["seconds"] * LONGER:
        return {"budget_bytes": most, **ran[most]}  # the speed with all of the GPU's memory
    budget = least_budget(takes_s, {**found.summary, "peak_bytes": most}, steps)
    return {"budget_bytes": budget, **ran[budget]}


def largest_native(runner: Runner, machine: gpus.Machine) -> int:
    """Sequences of a plain step that fits the GPU: memory grows by the same for each of them."""
    peaks = {batch: runner.record("bert-large", machine.gpu.name, batch=batch,
                                  length=LENGTH).summary["peak_bytes"] for batch in (4, 8)}
    each = (peaks[8] - peaks[4]) // 4
    return max(0, 4 + (machine.budget_bytes - peaks[4]) // each)


def batches(runner: Runner, machine: gpus.Machine, sizes: Sequence[int]) -> dict[str, Any]:
    """Of a whole batch: a loop of parts as large as fit the GPU natively, and the relay."""
    native = largest_native(runner, machine)
    rows = []
    for batch in sizes:
        size = max(part for part in range(1, batch + 1) if batch % part == 0 and part <= native)
        loop = runner.record("bert-large", machine.gpu.name, batch=batch, length=LENGTH,
                             micro_batches=batch // size)
        relay = runner.record("bert-large", machine.gpu.name, "relay", batch=batch, length=LENGTH,
                              micro_batches=max(1, batch // PART))
        rows.append({"batch": batch, "loop_part": size, "relay_part": min(batch, PART),
                     "loop": _kept(loop), "relay": {**_kept(relay),
                                                    **least(runner, relay, machine)}})
    return {"job": "bert-large", "machine": machine.name, "words": machine.words(),
            "times": "roofline", "length": LENGTH, "native_batch": native, "rows": rows}


def depth(runner: Runner, machine: gpus.Machine, layers: int) -> dict[str, Any]:
    """A batch through so many layers: at one budget for all depths, and the least one. By a program
    that waits for each of its kernels, and by one that enqueues some ahead, as PyTorch's do: the
    driver's calls that map memory make a first kernel behind them late, and no other."""
    relay = runner.record("bert-large", machine.gpu.name, "relay", batch=DEEP_BATCH,
                          length=LENGTH, micro_batches=DEEP_PARTS, layers=layers)
    row: dict[str, Any] = {"job": "bert-large", "machine": machine.name, "words": machine.words(),
                           "times": "roofline", "length": LENGTH, "batch": DEEP_BATCH,
                           "parts": DEEP_PARTS, "layers": layers}
    if relay.error:
        return {**row, "error": relay.error}
    row |= {**_kept(relay), "budget_bytes": DEEP_BUDGET, "ahead_kernels": AHEAD}
    for name, ahead in (("waiting", 0), ("ahead", AHEAD)):
        row[name] = runner.simulate(relay.prefix, DEEP_BUDGET, machine, run_ahead=ahead)
        if layers <= BISECTED:
            row["least_" + name] = least(runner, relay, machine, run_ahead=ahead)
    return row


def many_parameters(runner: Runner, machine: gpus.Machine, job: str = MANY[0]) -> dict[str, Any]:
    """All of the GPU's memory, and of the host's what the paper's machine has; states in bf16."""
    machine = dataclasses.replace(machine, host_gib=MANY[2])
    found = runner.record(job, machine.gpu.name, "relay", micro_batches=MANY[1])
    row = {"job": job, "machine": machine.name, "words": machine.words(), "times": "roofline",
           "parts": MANY[1]}
    if found.error:
        return {**row, "error": found.error}
    return {**row, **_kept(found), "budget_bytes": machine.budget_bytes,
            **runner.simulate(found.prefix, machine.budget_bytes, machine)}


def hosts(runner: Runner, case: HostCase) -> dict[str, Any]:
    """Parts of the speed with unlimited memory of a plain loop over the same parts; of a whole batch
    where there is none to compare with."""
    machine = gpus.MACHINES[case.machine]
    if case.host_gib:
        machine = dataclasses.replace(machine, host_gib=case.host_gib)
    changed = {"batch": case.batch, "length": LENGTH} if case.batch else {}
    loop = {"micro_batches": case.parts} if case.batch else {}
    plain = runner.record(case.job, machine.gpu.name, **changed, **loop)
    row: dict[str, Any] = {"job": case.job, "machine": machine.name, "batch": case.batch,
                           "words": machine.words(), "times": "roofline", "parts": case.parts}
    if plain.error:
        return {**row, "error": plain.error}
    row |= _kept(plain)
    row["orders"] = []
    for optimizer in case.optimizers:
        for cpu in case.cpus if optimizer == "host" else ("",):
            order = {"order": f"{optimizer} {cpu}".strip()}
            found = runner.record(case.job, machine.gpu.name, "relay", micro_batches=case.parts,
                                  **changed, optimizer=optimizer, **({"cpu": cpu} if cpu else {}))
            if found.error:
                row["orders"].append({**order, "error": found.error})
                continue
            budgets = []
            for each in case.budgets:
                budget = each if each > 100 else plain.summary["peak_bytes"] * each // 100
                budgets.append({"percent": round(100 * budget / plain.summary["peak_bytes"]),
                                "budget_bytes": budget,
                                **runner.simulate(found.prefix, budget, machine)})
            row["orders"].append({**order, **_kept(found), "budgets": budgets})
    return row
