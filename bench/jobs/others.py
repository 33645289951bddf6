"""What people do today about a job that does not fit, on the same traces and machine: how long a
step takes, or why it does not run. Each is given the benefit of the doubt where it is modelled.
"""

from __future__ import annotations

from collections import OrderedDict

import gpus
from job_traces import Trace

PAGING_GBS = 10.0   # what page faults with prefetching were measured to reach (Nixie)


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


def streaming(recomputed: dict, weights: int, layers: int,
              machine: gpus.Machine) -> tuple[int, float]:
    """Weights, gradients and the optimizer's states live outside (ZeRO-Infinity); layers are
    recomputed. Bytes on the GPU, and seconds were every transfer to overlap perfectly."""
    states = recomputed["persistent_bytes"] - weights
    on_gpu = recomputed["peak_bytes"] - recomputed["persistent_bytes"] - weights \
        + 3 * weights // max(layers, 1)
    over_link = (3 * weights + weights) / machine.gpu.link_gbs / 1e9    # thrice in, gradients out
    from_disk = states / machine.read_gbs / 1e9 + states / machine.write_gbs / 1e9
    return max(on_gpu, recomputed["largest_kernel_bytes"]), \
        max(recomputed["seconds"], over_link) + max(0.0, from_disk - recomputed["seconds"])
