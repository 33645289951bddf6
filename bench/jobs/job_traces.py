"""Traces of training steps, as `firn simulate` takes them and `firn run --trace` records them:
PREFIX.tensors.csv and PREFIX.kernels.csv."""

from __future__ import annotations

import csv
import dataclasses
from typing import Any


@dataclasses.dataclass
class Trace:
    kernels: list[tuple[int, list[int], list[int]]]   # ns, inputs, outputs
    bytes: dict[int, int]
    persistent: set[int]
    names: list[str] = dataclasses.field(default_factory=list)    # of operators; none: unknown
    at_host: set[int] = dataclasses.field(default_factory=set)    # of kernels, by their place

    @property
    def seconds(self) -> float:
        """Of the device."""
        return sum(each[0] for at, each in enumerate(self.kernels) if at not in self.at_host) / 1e9

    @property
    def host_seconds(self) -> float:
        return sum(self.kernels[at][0] for at in self.at_host) / 1e9

    @property
    def persistent_bytes(self) -> int:
        return sum(self.bytes[each] for each in self.persistent)


def read(prefix: str) -> Trace:
    sizes, persistent = {}, set()
    with open(prefix + ".tensors.csv", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            sizes[int(row["tensor"])] = int(row["bytes"])
            if row["kind"] == "persistent":
                persistent.add(int(row["tensor"]))
    with open(prefix + ".kernels.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    kernels = [(int(row["duration_ns"]), *([int(each) for each in row[key].split()]
                                           for key in ("inputs", "outputs"))) for row in rows]
    return Trace(kernels, sizes, persistent, [row["name"] for row in rows],
                 {at for at, row in enumerate(rows) if row.get("where") == "host"})


def write(trace: Trace, prefix: str) -> None:
    with open(prefix + ".tensors.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("tensor", "bytes", "kind"))
        rows.writerows((each, size, "persistent" if each in trace.persistent else "transient")
                       for each, size in sorted(trace.bytes.items()))
    with open(prefix + ".kernels.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("kernel", "name", "duration_ns", "inputs", "outputs",
                       *(("where",) if trace.at_host else ())))
        names = trace.names or ["kernel"] * len(trace.kernels)
        rows.writerows((at, name, ns, " ".join(map(str, ins)), " ".join(map(str, outs)),
                        *(("host" if at in trace.at_host else "gpu",) if trace.at_host else ()))
                       for at, (name, (ns, ins, outs)) in enumerate(zip(names, trace.kernels)))


def without_persistent(trace: Trace) -> Trace:
    """Only what is made in the iteration: weights and states take no room and never move."""
    def left(tensors):
        return [each for each in tensors if each not in trace.persistent]
    return Trace([(ns, left(ins), left(outs)) for ns, ins, outs in trace.kernels],
                 {each: size for each, size in trace.bytes.items()
                  if each not in trace.persistent}, set(), trace.names, trace.at_host)


def summary(trace: Trace) -> dict[str, Any]:
    """Bytes alive at most when all is in memory, as the simulator counts, and the time."""
    begins: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    for at, (_, ins, outs) in enumerate(trace.kernels):
        for each in {*ins, *outs} - trace.persistent:
            if each not in last:
                begins.setdefault(at, []).append(each)
            last[each] = at
    ends: dict[int, list[int]] = {}
    for each, at in last.items():
        ends.setdefault(at, []).append(each)
    size = trace.bytes
    held = alive = peak = trace.persistent_bytes
    largest = 0
    for at, (_, ins, outs) in enumerate(trace.kernels):
        alive += sum(size.get(each, 0) for each in begins.get(at, []))
        peak = max(peak, alive)
        if at not in trace.at_host:
            largest = max(largest, sum(size.get(each, 0) for each in {*ins, *outs}))
        alive -= sum(size.get(each, 0) for each in ends.get(at, []))
    return {"kernels": len(trace.kernels), "seconds": trace.seconds, "peak_bytes": peak,
            "persistent_bytes": held, "largest_kernel_bytes": largest,
            **({"host_seconds": trace.host_seconds} if trace.at_host else {})}
