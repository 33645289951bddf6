"""Jobs recorded, simulated on a modelled machine, bounded, and the other ways beside them."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
import subprocess
import sys
import threading
from typing import Any

import bound
import bound_remake
import gpus
import job_traces
import models
import others

HERE = pathlib.Path(__file__).resolve().parent
WAYS = ("plain", "recompute", "save-on-cpu")
# Of a budget: what runs, what is at best, and the bounds.
COLUMNS = ("bound", "bound_remake", "lifetime", "remake", "age", "both", "recompute", "save-on-cpu",
           "chosen", "titan", "streaming", "paging", "nothing")
KEPT = ("ideal_s", "steady_s", "bytes_spilled", "bytes_faulted", "bytes_written", "bytes_read",
        "stall_s", "plan_s", "peak_device_bytes")
# Of a trace with rows at the host.
HOSTED = ("host_rows", "host_s", "host_waited_s", "stall_for_host_s", "bytes_used_at_host")
# With `--remake on`.
REMADE = ("remade_values", "remade_bytes", "remade_s", "remake_choice_s")


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A trace, and what is known of it; or the reason why there is none."""
    prefix: str = ""
    summary: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: str = ""


def _last_line(ran: subprocess.CompletedProcess) -> str:
    return ((ran.stderr.strip() or ran.stdout.strip()).splitlines() or ["no word"])[-1]


def rates(machine: gpus.Machine) -> bound.Machine:
    return bound.Machine(machine.gpu.link_gbs * 1e9, machine.read_gbs * 1e9,
                         machine.write_gbs * 1e9, machine.host_gib * gpus.GIB)


class Runner:
    def __init__(self, firn: pathlib.Path, folder: pathlib.Path, iterations: int):
        self.firn, self.folder, self.iterations = firn, folder, iterations
        self._traces: dict[str, job_traces.Trace] = {}
        self._lock = threading.Lock()

    def trace(self, prefix: str) -> job_traces.Trace:
        with self._lock:
            if prefix not in self._traces:
                self._traces.clear()           # jobs come one after the other
                self._traces[prefix] = job_traces.read(prefix)
            return self._traces[prefix]

    def record(self, job: str, gpu: str, way: str = "plain", **changed: int | str) -> Recorded:
        """`changed`: layers, batch, length, micro_batches, optimizer, cpu. A job may also be the
        prefix of a trace from a program that ran (`firn run --trace`): then there is that one way,
        with the times it took."""
        if job not in models.JOBS:
            if way != "plain":
                return Recorded(error="recorded as it ran, in no other way")
            return Recorded(job, {**job_traces.summary(self.trace(job)), "times": "recorded"})
        name = "-".join([job, way, *(f"{key}{value}" for key, value in changed.items())])
        done = self.folder / (name + ".json")
        if not done.exists() or gpu not in json.loads(done.read_text(encoding="utf-8")):
            ran = subprocess.run(
                [sys.executable, str(HERE / "record.py"), job, str(self.folder / name), "--gpu",
                 ",".join(gpus.GPUS), "--way", way,
                 *(word for key, value in changed.items()
                   for word in (f"--{key.replace('_', '-')}", str(value)))],
                capture_output=True, text=True)
            if ran.returncode:
                return Recorded(error=_last_line(ran))
            lines = [json.loads(each) for each in ran.stdout.splitlines() if each.startswith("{")]
            done.write_text(json.dumps({each["gpu"]: each for each in lines}), encoding="utf-8")
        return Recorded(str(self.folder / f"{name}-{gpu}"),
                        json.loads(done.read_text(encoding="utf-8"))[gpu])

    def simulate(self, prefix: str, budget: int, machine: gpus.Machine, policy: str = "lifetime",
                 remake: bool = False, run_ahead: int = 0) -> dict[str, Any]:
        """`run_ahead`: kernels that the program enqueues ahead of the running one."""
        read, write = gpus.SSDS[machine.ssd]
        ran = subprocess.run(
            [str(self.firn), "simulate", prefix, "--gpu-memory", f"{budget >> 20}MiB", "--ssd-read",
             f"{read}GB/s", "--ssd-write", f"{write}GB/s", "--ssds", str(machine.ssds), "--pcie",
             f"{machine.gpu.link_gbs}GB/s", "--host", f"{machine.host_gib}GiB", "--policy", policy,
             *(("--remake", "on") if remake else ()),
             *(("--run-ahead", str(run_ahead)) if run_ahead else ()),
             "--iterations", str(self.iterations), "--json"], capture_output=True, text=True)
        if ran.returncode:
            return {"error": _last_line(ran)}
        found = json.loads(ran.stdout)
        return {key: found[key] for key in (*KEPT, *(REMADE if remake else ()), *HOSTED)
                if key not in HOSTED or key in found}

    def remake(self, prefix: str, budget: int, machine: gpus.Machine) -> dict[str, Any]:
        return self.simulate(prefix, budget, machine, remake=True)

    def lifetimes(self, prefix: str) -> dict[str, Any]:
        """Of the trace alone: `firn simulate --lifetimes`, without its parts over time."""
        ran = subprocess.run([str(self.firn), "simulate", prefix, "--lifetimes", "--json"],
                             capture_output=True, text=True)
        if ran.returncode:
            return {"error": _last_line(ran)}
        found = json.loads(ran.stdout)
        del found["over_time"]
        return found

    def bound(self, prefix: str, budget: int, machine: gpus.Machine) -> dict[str, Any]:
        """Of the iterations that simulate() counts; see bound.py."""
        found = bound.step(self.trace(prefix), budget, rates(machine),
                           self.iterations - self.iterations // 2)
        if not found.waits_s:
            return {"error": "a kernel needs more"}
        return {"steady_s": found.step_s, "waits_s": found.waits_s}

    def bound_remake(self, prefix: str, budget: int, machine: gpus.Machine) -> dict[str, Any]:
        """In the long run, for who may also make again; see bound_remake.py."""
        found = bound_remake.step(self.trace(prefix), budget, rates(machine))
        if math.isinf(found.step_s):
            return {"error": "a kernel needs more"}
        return {"steady_s": found.step_s, "again_s": found.again_s, "proven": found.proven}

    def curve(self, job: str, machine: gpus.Machine, percents: list[int],
              columns: tuple[str, ...] = COLUMNS) -> dict[str, Any]:
        """A job at parts of the memory that it takes."""
        ways = {way: self.record(job, machine.gpu.name, way) for way in WAYS}
        plain = ways["plain"]
        result = {"job": pathlib.Path(job).name, "machine": machine.name, "ssds": machine.ssds,
                  "words": machine.words()}
        if plain.error:
            return {**result, "error": plain.error}
        rows = []
        for percent in percents:
            budget = plain.summary["peak_bytes"] * percent // 100
            rows.append({"percent": percent, "budget_bytes": budget,
                         **{column: self._cell(column, job, ways, budget, machine)
                            for column in columns}})
        return {**result, **{key: plain.summary[key] for key in (
            "times", "kernels", "seconds", "peak_bytes", "persistent_bytes")}, "budgets": rows}

    def _cell(self, column: str, job: str, ways: dict[str, Recorded], budget: int,
              machine: gpus.Machine) -> dict[str, Any]:
        plain, again = ways["plain"], ways["recompute"]
        if column in ("bound", "bound_remake", "remake"):
            return getattr(self, column)(plain.prefix, budget, machine)
        if column in ("lifetime", "age"):
            return self.simulate(plain.prefix, budget, machine, column)
        if column == "both":
            return {"error": again.error} if again.error else \
                self.simulate(again.prefix, budget, machine)
        if column in WAYS:
            return _where_it_fits(ways[column], budget)
        if column == "nothing":
            return _where_it_fits(plain, budget)
        if column == "streaming":
            return self._streaming(job, again, machine, budget)
        takes_s = {"paging": others.paging_s, "chosen": others.recomputing_s,
                   "titan": functools.partial(others.moving_or_recomputing_s,
                                            machine=rates(machine))}
        seconds = takes_s[column](self.trace(plain.prefix), budget)
        return {"steady_s": seconds} if seconds else \
            {"error": "a kernel needs more" if column == "paging" else "out of memory"}

    def _streaming(self, job, again, machine, budget):
        if again.error:
            return {"error": again.error}
        weights = again.summary["persistent_bytes"] // 3   # one of: weights and two states alike
        needs, seconds = others.streaming(again.summary, weights, models.JOBS[job].layers or 50,
                                          machine)
        return {"steady_s": seconds} if needs <= budget else {"error": "out of memory"}

    def depth(self, job: str, machine: gpus.Machine, budget: int,
              layers: list[int]) -> dict[str, Any]:
        """L2L's sweep: deeper and deeper, the optimizer's state included, at one budget."""
        rows = []
        for count in layers:
            row: dict[str, Any] = {"layers": count}
            for way, name in (("plain", "lifetime"), ("recompute", "both")):
                found = self.record(job, machine.gpu.name, way, layers=count)
                if found.error:
                    row[name] = {"error": found.error}
                    continue
                row[name] = {**self.simulate(found.prefix, budget, machine),
                             **{key: found.summary[key] for key in (
                                 "seconds", "peak_bytes", "persistent_bytes")}}
                if way == "plain":
                    for each in ("bound", "remake", "bound_remake"):
                        row[each] = getattr(self, each)(found.prefix, budget, machine)
            rows.append(row)
        return {"job": job, "machine": machine.name, "words": machine.words(), "times": "roofline",
                "budget_bytes": budget, "rows": rows}


def _where_it_fits(found: Recorded, budget: int) -> dict[str, Any]:
    if found.error:
        return {"error": found.error}
    if found.summary["peak_bytes"] > budget:
        return {"error": "out of memory"}
    return {"steady_s": found.summary["seconds"]}


def added_to(before: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Budgets and columns of the same trace stay, where there are none in their place."""
    trace = ("kernels", "peak_bytes", "persistent_bytes", "times", "words")
    if "budgets" not in before or any(before[each] != result.get(each) for each in trace) or \
            not math.isclose(before["seconds"], result["seconds"], rel_tol=1e-5):
        return result
    rows = {row["percent"]: row for row in before["budgets"]}
    for row in result["budgets"]:
        rows[row["percent"]] = rows.get(row["percent"], {}) | row
    return {**result, "budgets": [rows[each] for each in sorted(rows, reverse=True)]}
