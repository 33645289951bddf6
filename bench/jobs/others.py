"""What people do today about a job that does not fit, on the same traces and machine: how long a
step takes, or why it does not run. Each is given the benefit of the doubt where it is modelled.
"""

from __future__ import annotations

import csv
import dataclasses
from collections import OrderedDict

import gpus

PAGING_GBS = 10.0   # what page faults with prefetching were measured to reach (facts: Nixie's paper)


@dataclasses.dataclass
class Trace:
    kernels: list[tuple[int, list[int], list[int]]]   # ns, inputs, outputs
    bytes: dict[int, int]
    persistent: set[int]

    @property
    def seconds(self) -> float:
        return sum(each[0] for each in self.kernels) / 1e9

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
        kernels = [(int(row["duration_ns"]), *([int(each) for each in row[key].split()]
                                               for key in ("inputs", "outputs")))
                   for row in csv.DictReader(file)]
    return Trace(kernels, sizes, persistent)


def paging_s(trace: Trace, budget: int) -> float | None:
    """Least recently used leaves, what is missing is waited for (managed memory): steady state."""
    last = {each: at for at, (_, ins, outs) in enumerate(trace.kernels) for each in (*ins, *outs)}
    resident: OrderedDict[int, bool] = OrderedDict()  # to: was it written
    away: set[int] = set()
    held, moved = 0, 0
    for iteration in range(2):
        moved = 0
        for at, (_, ins, outs) in enumerate(trace.kernels):
            used = {*ins, *outs}
            if sum(trace.bytes[each] for each in used) > budget:
                return None
            for each in used:
                if each in resident:
                    resident.move_to_end(each)
            for each in used:
                if each in resident:
                    continue
                if each in away:
                    moved += trace.bytes[each]
                    away.discard(each)
                held += trace.bytes[each]
                resident[each] = False
            for each in list(resident):
                if held <= budget:
                    break
                if each in used:
                    continue
                dirty = resident.pop(each)
                held -= trace.bytes[each]
                moved += trace.bytes[each] if dirty else 0
                away.add(each)
            for each in outs:
                resident[each] = True
            for each in used:
                if last[each] == at and each not in trace.persistent:
                    resident.pop(each, None)
                    held -= trace.bytes[each]
        del iteration
    return trace.seconds + moved / PAGING_GBS / 1e9


def streaming(plain: dict, recomputed: dict, weights: int, layers: int, gpu: gpus.Gpu,
              read_gbs: float, write_gbs: float) -> tuple[int, float]:
    """Weights, gradients and the optimizer's states live outside (ZeRO-Infinity); layers are
    recomputed. Bytes on the GPU, and seconds were every transfer to overlap perfectly."""
    states = recomputed["persistent_bytes"] - weights
    on_gpu = recomputed["peak_bytes"] - recomputed["persistent_bytes"] - weights \
        + 3 * weights // max(layers, 1)
    over_link = (3 * weights + weights) / gpu.link_gbs / 1e9    # thrice in, gradients out
    from_disk = states / read_gbs / 1e9 + states / write_gbs / 1e9
    del plain
    return max(on_gpu, recomputed["largest_kernel_bytes"]), \
        max(recomputed["seconds"], over_link) + max(0.0, from_disk - recomputed["seconds"])
