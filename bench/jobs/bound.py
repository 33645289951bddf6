"""A lower bound of what a training step takes at a budget, for any mover of bytes: whoever keeps
what is needed later, computes nothing twice, and knows everything in advance.

Iterations repeat. A value is alive at kernel k when it was made before k, is read after k, and
k does not use it. Take kernels j < k. What k uses is on the device while k runs; of the values
alive at k that were made by j or after it, the rest has left since j ended, when the oldest of
them was made:

  left(j, k) = used(k) + alive at k and made in [j, k) - budget

bytes went out over the link between the end of j and the begin of k (copies are also made of
what is only read: nothing else is asked of the mover; what was made before j may have a copy
outside that is valid still, so it counts nothing here). Where that takes longer than the
kernels between j and k, none ran for the difference. In the same way, for k < n,

  came(k, n) = used(k) + alive at k and read by n or before - budget

bytes came in between the end of k and the begin of n. Of what is away host memory holds a part,
its size at most; the rest of either went to SSDs, or came from them, at the SSDs' rates in the
same time. Blocks may leave in parts of any size, so bytes are counted, no blocks.

Every such statement is about the waits in one interval, and intervals that have no wait in
common add up: the best set of them is found by dynamic programming over the waits of some
iterations, from an arbitrary state at their begin. What of it lies between two points a period
apart, none of the intervals across either, can be stated again in every period: that is the
bound in the long run. A statement that takes in more than one period says nothing that a
shorter one does not.

Cost: O(kernels^2) vector operations' elements for each iteration, where memory is short at all
kernels.
"""

from __future__ import annotations

import dataclasses
import math

import numpy

import job_traces


@dataclasses.dataclass(frozen=True)
class Machine:
    """Rates in bytes per second, all independent of each other."""
    link: float                # each way
    read: float = math.inf     # of all SSDs together
    write: float = math.inf
    host: float = 0.0          # bytes of host memory


KINDS = ("link, out", "SSD, write", "link, in", "SSD, read")


@dataclasses.dataclass(frozen=True)
class Bound:
    """Infinite: a kernel needs more than the budget."""
    step_s: float              # of a step, in the long run
    waits_s: dict[str, float]  # of it, by what is too slow there
    window_s: float            # a step's mean in so many iterations, whatever was before and after


@dataclasses.dataclass(frozen=True)
class Life:
    """A value, alive between two uses. Kernels' numbers; `read` may lie in the next period, `made`
    in the one before."""
    tensor: int
    made: int
    used: int
    read: int
    size: int
    written: bool              # by kernel `made`; else the program was given it


def lives(trace: job_traces.Trace) -> list[Life]:
    period = len(trace.kernels)
    uses: dict[int, list[tuple[int, bool, bool]]] = {}
    for at, (_, ins, outs) in enumerate(trace.kernels):
        reads, writes = set(ins), set(outs)
        for each in reads | writes:
            uses.setdefault(each, []).append((at, each in reads, each in writes))
    found = []
    for tensor, of in uses.items():
        size = trace.bytes.get(tensor, 0)
        made = of[0][0]                    # what is transient is made by its first use
        by_kernel = of[0][2]
        if tensor in trace.persistent:
            written = [at for at, _, writes in of if writes]
            # What is never written has been valid elsewhere for ever.
            made = written[-1] - period if written else -2 * period
            by_kernel = bool(written)
            of = of + [(of[0][0] + period, *of[0][1:])]
        for (at, _, writes), (later, reads, _) in zip(of, of[1:]):
            if writes:
                made, by_kernel = at, True
            # What is written and not read next need not be kept.
            if reads and later > at + 1 and size:
                found.append(Life(tensor, made, at, later, size, by_kernel))
    return found


class _Alive:
    """What is alive at the kernel that is looked at, by when it was made and when it is read.
    Kernel k of iteration i has the number (i + 1) * period + k: what was made before them fits
    in."""

    def __init__(self, trace: job_traces.Trace, iterations: int):
        self.period = len(trace.kernels)
        self.by_made = numpy.zeros((iterations + 3) * self.period)
        self.by_read = numpy.zeros((iterations + 3) * self.period)
        self.bytes = 0
        self._begins: list[list[Life]] = [[] for _ in range(self.period)]
        self._ends: list[list[Life]] = [[] for _ in range(self.period)]
        for life in lives(trace):
            self._begins[life.used].append(life)
            self._ends[life.read % self.period].append(life)
            if life.read >= self.period and life.used + 1 < self.period:
                self._count(life, 0, 1)    # alive at the last kernel before the first iteration

    def _count(self, life: Life, base: int, sign: int) -> None:
        self.by_made[max(0, life.made + base)] += sign * life.size
        self.by_read[life.read + base] += sign * life.size
        self.bytes += sign * life.size

    def enter(self, at: int) -> None:
        """Kernel `at` begins: what it reads is no longer alive without it."""
        for life in self._ends[at % self.period]:
            self._count(life, at - life.read, -1)

    def leave(self, at: int) -> None:
        for life in self._begins[at % self.period]:
            self._count(life, at - life.used, 1)


def step(trace: job_traces.Trace, budget: int, machine: Machine, iterations: int = 3) -> Bound:
    """Of a steady step; `iterations` are looked at together."""
    period = len(trace.kernels)
    ns = numpy.array([each[0] for each in trace.kernels], dtype=float)
    used = numpy.array([sum(trace.bytes.get(each, 0) for each in {*ins, *outs})
                        for _, ins, outs in trace.kernels], dtype=float)
    if used.max() > budget:
        return Bound(math.inf, {}, math.inf)
    first, last = period, (iterations + 1) * period
    begins = numpy.concatenate(([0.0], numpy.cumsum(numpy.tile(ns, iterations + 2)))) / 1e9
    most = numpy.zeros(last + 1)           # waits before kernel k that are proven: most[k + 1]
    source = numpy.full(last + 1, -1)      # most[source] and one statement, of that kind, prove it
    kind = numpy.zeros(last + 1, dtype=int)
    alive = _Alive(trace, iterations)

    def seconds(bytes_over, link, disks):
        over_link, over_disks = bytes_over / link, (bytes_over - machine.host) / disks
        return numpy.maximum(over_link, over_disks), over_disks > over_link

    # Numbers are as in _Alive: those of the first iteration begin at `period`. From the end of the
    # kernel before them on, waits count.
    for at in range(first - 1, last):
        if at >= first:
            alive.enter(at)
            if most[at] > most[at + 1]:
                most[at + 1], source[at + 1] = most[at], -1
        over = used[at % period] - budget
        if over + alive.bytes > 0 and at >= first:
            # Out, between the end of j and the begin of `at`; waits j + 1 to `at`.
            low = max(at - period, first - 1)
            left = over + numpy.cumsum(alive.by_made[low:at][::-1])[::-1]
            takes, by_disk = seconds(left, machine.link, machine.write)
            total = most[low + 1:at + 1] + takes - (begins[at] - begins[low + 1:at + 1])
            best = int(total.argmax())
            if total[best] > most[at + 1]:
                most[at + 1], source[at + 1] = total[best], low + 1 + best
                kind[at + 1] = by_disk[best]
        if over + alive.bytes > 0:
            # In, between the end of `at` and the begin of n; waits `at` + 1 to n.
            high = min(at + period, last - 1)
            came = over + numpy.cumsum(alive.by_read[at + 1:high + 1])
            takes, by_disk = seconds(came, machine.link, machine.read)
            total = most[at + 1] + takes - (begins[at + 1:high + 1] - begins[at + 1])
            better = numpy.flatnonzero(total > most[at + 2:high + 2])
            most[at + 2 + better], source[at + 2 + better] = total[better], at + 1
            kind[at + 2 + better] = 2 + by_disk[better]
        alive.leave(at)

    ideal, node, kinds = float(ns.sum()) / 1e9, last, {last: dict.fromkeys(KINDS, 0.0)}
    while node > first:                    # backwards: waits from `node` to the end, by kind
        before = int(source[node])
        after, sums = node, dict(kinds[node])
        node = before if before >= 0 else node - 1
        if before >= 0:
            sums[KINDS[kind[after]]] += float(most[after] - most[before])
        kinds[node] = sums
    window = {each: total / iterations for each, total in kinds[first].items()}
    best = window
    for node in kinds:                     # no chosen interval goes across them, a period apart
        if node + period in kinds:
            one = {each: kinds[node][each] - kinds[node + period][each] for each in KINDS}
            best = max(best, one, key=lambda waits: sum(waits.values()))
    return Bound(ideal + sum(best.values()), best, ideal + sum(window.values()))
