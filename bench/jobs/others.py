"""The ways of today with a job that does not fit, on the same traces and machine: how long a
step takes, or why it does not run. Each is given the benefit of the doubt where it is modelled.
"""

from __future__ import annotations

from collections import OrderedDict

import bound
import bound_remake
import gpus
from job_traces import Trace, without_persistent

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
    """Weights, gradients and the optimizer's states live outside (ZeRO-Infinity), in host memory as
    far as it goes (ZeRO-Offload): weights and gradients first, for they are wanted more often.
    Layers are recomputed. Bytes on the GPU, and seconds were every transfer to overlap perfectly.
    """
    states = recomputed["persistent_bytes"] - weights
    on_gpu = recomputed["peak_bytes"] - recomputed["persistent_bytes"] - weights \
        + 3 * weights // max(layers, 1)
    over_link = (3 * weights + weights) / machine.gpu.link_gbs / 1e9    # thrice in, gradients out
    hosted = machine.host_gib * gpus.GIB if machine.host_gib > 1 else 0    # (1: staging only)
    on_disk = min(states, max(0, states + 2 * weights - hosted))
    from_disk = on_disk / machine.read_gbs / 1e9 + on_disk / machine.write_gbs / 1e9
    return max(on_gpu, recomputed["largest_kernel_bytes"]), \
        max(recomputed["seconds"], over_link) + max(0.0, from_disk - recomputed["seconds"])


NO_LINK = bound.Machine(link=1e5)   # bytes a second: what has to move takes longer than any step
LONGEST = 20      # times the step with all in memory: what waits so long has no room


def recomputing_s(trace: Trace, budget: int) -> float | None:
    """Nothing moves; what is recomputed is chosen value by value, as a compiler may do it
    (activation_memory_budget: a min-cut, then a knapsack over operators that may run again). At
    best: the least that any such choice takes, by bound_remake.py, parts of operators included;
    kernels are the eager program's. None: it does not fit."""
    found = bound_remake.step(trace, budget, NO_LINK)
    return found.step_s if found.step_s < LONGEST * trace.seconds else None


def moving_or_recomputing_s(trace: Trace, budget: int, machine: bound.Machine) -> float | None:
    """Each activation is kept, recomputed or moved, by a plan made in advance, as torchtitan's
    auto_perf_maxing does (pull requests 4636 and 3881); weights and the optimizer's states stay. At
    best: the bound of whoever does that, host memory and SSDs at its disposal."""
    left = budget - trace.persistent_bytes
    if left <= 0:
        return None
    found = bound_remake.step(without_persistent(trace), left, machine)
    return found.step_s if found.step_s < LONGEST * trace.seconds else None
