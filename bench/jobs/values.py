"""The values of a trace: which operator made what each kernel reads, and until when it is read."""

from __future__ import annotations

import bisect

import job_traces

# Others take part in these; what they do again is not this GPU's alone.
NEVER_AGAIN = {"all_reduce", "copy to the host", "copy from the host"}


class Values:
    """Which operator made what each kernel reads. A value is (tensor, kernel that wrote it)."""

    def __init__(self, trace: job_traces.Trace):
        self.trace = trace
        self._writes: dict[int, list[int]] = {}
        self.dies: dict[tuple[int, int], int] = {}    # the last kernel that reads it
        for at, (_, ins, outs) in enumerate(trace.kernels):
            for each in ins:
                value = self.read_by(at, each)
                if value:
                    self.dies[value] = at
            for each in outs:
                self._writes.setdefault(each, []).append(at)
                self.dies[each, at] = at

    def read_by(self, kernel: int, tensor: int) -> tuple[int, int] | None:
        """None: at hand, whatever happened."""
        writes = self._writes.get(tensor, [])
        before = bisect.bisect_left(writes, kernel)
        if tensor in self.trace.persistent or not before:
            return None
        return tensor, writes[before - 1]

    def may_run_again(self, kernel: int) -> bool:
        names = self.trace.names
        return not names or names[kernel] not in NEVER_AGAIN
