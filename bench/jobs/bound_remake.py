"""A lower bound of what a training step takes at a budget for whoever may move bytes and may run
operators again: bound.py's statements, where a value that is away may also be nowhere.

The program's kernels run in their order, one at a time; operators run again between them, whole.
A byte of a value that lies idle at kernel k (made before k, read after k, not used by k) is on the
device, or comes back over the link, or is *void*: off the device, and back by its operator's next
run. Take bound.py's left(j, k) and came(k, n): of the bytes that are off the device at k, those
that are not void

  went out between the end of j and the begin of k,  for what was made by j or after it,
  come in between the end of k and the begin of n,   for what is read by n or before,

and in either interval the device computes what the program does, runs operators again, or waits.
So, with wait(i) for the time before kernel i that the program does not compute,

  link * (computing(j, k) + sum of waits) + void(j, k) >= used(k) + alive(j, k) - budget

and the same for the SSDs, less what host memory holds. A linear programme finds the least sum of
waits. Its columns, each the mean over a run's iterations and over a value's bytes:

  wait(s)      in seconds, in each slot: between two kernels that are looked at
  again(o, p)  operator o runs again in phase p (some slots), at most once counted
  void(v, p)   bytes of the idle value v that are void at one of p's kernels
  held(x, p)   bytes of value x, dead in the program, that are there still when p begins, for an
               operator that runs in p or later and reads those, not what was made again

and its rows, each of which holds for every schedule:

  the waits in p are at least the times of what runs again in p;
  void(v, p) <= sum of again(its operator, q), q from p until v is read;
  an input that is dead is held, or is made again first:
      again(o, p) <= held(x, p) + sum of again(x's operator, q), q from x's death to p;
  an input that is idle must not be void:
      again(o, p) + void(x, p - 1) <= 1 + again(x's operator, p - 1) + again(x's operator, p);
  held(x, p) does not rise with p; what is held takes room, or left as other bytes do, and what is
  held until phase p no more came back by then.

What is left out makes the bound lower, never higher: parts of operators may run; room for what runs
again, for its inputs and for what was made again early costs nothing; order within a phase is free;
inputs that persist, that the program was given, or that are small are at hand. An operator may run
again whatever it is (random ones too: their state may have been kept), but for collectives and
copies to the host; what persists is made by the program alone. Fewer kernels looked at, fewer
phases, and rows that were not added only lower the bound as well, so the search for violated rows
may end at any time.
"""

from __future__ import annotations

import dataclasses
import math
import time

import numpy
import scipy.optimize
import scipy.sparse

import bound
import job_traces
import values

SMALL = 2e-5            # of the peak: such values count nothing
CLOSE_S = 1e-6          # a row violated by less is not added


@dataclasses.dataclass(frozen=True)
class Bound:
    """Infinite: a kernel needs more than the budget."""
    step_s: float              # of a step, in the long run
    again_s: float             # of it, operators that run again, in the solution found
    proven: bool               # no row is violated: fewer kernels and phases alone lower it


@dataclasses.dataclass
class _Grid:
    """Kernels that are looked at, rising; slot s lies before mark s, after the mark before it; the
    last slot, after all marks."""
    marks: numpy.ndarray
    phases: numpy.ndarray              # of slots

    def slot(self, kernel: int) -> int:
        """Of what happens just before that kernel."""
        return int(numpy.searchsorted(self.marks, kernel))

    def phase(self, kernel: int) -> int:
        return int(self.phases[self.slot(kernel)])


def _grid(weight: numpy.ndarray, over: numpy.ndarray, slots: int, phases: int) -> _Grid:
    """In equal parts of the weight, the kernel at which memory is shortest."""
    share = numpy.cumsum(weight) / weight.sum()
    part = numpy.minimum((share * slots).astype(int), slots - 1)
    if slots >= len(weight):
        marks = numpy.arange(len(weight))
    else:
        marks = numpy.array([of[over[of].argmax()] for of in (
            numpy.flatnonzero(part == each) for each in range(slots)) if len(of)])
    if phases > len(marks):
        return _Grid(marks, numpy.arange(len(marks) + 1))
    ends = numpy.concatenate((share[marks], [1.0]))
    of_slots = numpy.minimum((ends * phases).astype(int), phases - 1)
    return _Grid(marks, numpy.unique(of_slots, return_inverse=True)[1])


class _Rows:
    """A sparse matrix, row by row: each at most its limit."""

    def __init__(self) -> None:
        self.data: list[numpy.ndarray] = []
        self.columns: list[numpy.ndarray] = []
        self.limits: list[float] = []

    def add(self, columns, data, limit: float) -> None:
        self.columns.append(numpy.asarray(columns, dtype=numpy.int64))
        self.data.append(numpy.asarray(data, dtype=float))
        self.limits.append(limit)

    def matrix(self, width: int) -> scipy.sparse.csr_array:
        ends = numpy.cumsum([0] + [len(each) for each in self.columns])
        return scipy.sparse.csr_array(
            (numpy.concatenate(self.data), numpy.concatenate(self.columns), ends),
            shape=(len(self.limits), width))


@dataclasses.dataclass
class _Idle:
    """What is alive, unused, at one mark: arrays beside each other. `void` and `held` are columns,
    none below zero."""
    made: numpy.ndarray
    read: numpy.ndarray
    size: numpy.ndarray
    void: numpy.ndarray
    # Dead by then, and held for what runs again.
    dead_made: numpy.ndarray
    dead_size: numpy.ndarray
    held: numpy.ndarray
    # Columns and bytes of them, by the phase until which they are held at least.
    held_until: list[tuple[numpy.ndarray, numpy.ndarray]]
    read_before: numpy.ndarray         # the phase that is not over, at each mark behind this one


class _Programme:
    def __init__(self, trace: job_traces.Trace, budget: int, machine: bound.Machine, slots: int,
                 phases: int, again: bool):
        self.trace, self.budget, self.machine = trace, budget, machine
        self.period = len(trace.kernels)
        ns = numpy.array([each[0] for each in trace.kernels], dtype=float)
        self.ideal_s = float(ns.sum()) / 1e9
        self.begins = numpy.concatenate(([0.0], numpy.cumsum(ns))) / 1e9
        self.used = numpy.array([sum(trace.bytes.get(each, 0) for each in {*ins, *outs})
                                 for _, ins, outs in trace.kernels], dtype=float)
        self.values = values.Values(trace)
        self.again_allowed = again
        small = SMALL * job_traces.summary(trace)["peak_bytes"] if again else 0.0
        self.small = small
        lives = [each for each in bound.lives(trace) if each.size > small]
        over = self._over(lives)
        made = numpy.array([sum(trace.bytes.get(each, 0) for each in outs)
                            for _, _, outs in trace.kernels], dtype=float)
        self.grid = _grid(ns / ns.sum() + made / made.sum() if made.sum() else ns, over, slots,
                          phases)
        self.rows, self.width = _Rows(), len(self.grid.marks) + 1
        self.again: dict[tuple[int, int], int] = {}
        self.void: dict[tuple[int, int, int], int] = {}
        self.held: dict[tuple[tuple[int, int], int], int] = {}
        self._lives: dict[tuple[int, int], bound.Life] = {}
        self.idle = self._columns(lives, over)
        self._rows_of_operators()

    def _over(self, lives) -> numpy.ndarray:
        """What is used and alive at each kernel, less the budget."""
        change = numpy.zeros(2 * self.period + 2)
        for life in lives:
            change[life.used + 1] += life.size
            change[life.read] -= life.size
        alive = numpy.cumsum(change)
        return self.used + alive[:self.period] + alive[self.period:2 * self.period] - self.budget

    def _column(self, of: dict, key) -> int:
        if key not in of:
            of[key] = self.width
            self.width += 1
        return of[key]

    # --- columns ---

    def _columns(self, lives, over) -> list[_Idle]:
        """Of what is idle where memory is short, and of the operators behind it."""
        marks, grid = self.grid.marks, self.grid
        idle: list[list[tuple[bound.Life, int]]] = [[] for _ in marks]
        ends: dict[int, int] = {}              # operators that may run again: the last phase
        for life in lives:
            for shift in (0, self.period):
                first, last = numpy.searchsorted(marks, (life.used + 1 - shift,
                                                         life.read - shift))
                for at in range(first, last):
                    if over[marks[at]] > 0:
                        idle[at].append((life, shift))
                        if self._remade(life):
                            ends[life.made] = max(ends.get(life.made, 0), grid.phase(life.read))
        self._dead: dict[int, list[tuple[int, int]]] = {}
        for kernel in range(self.period - 1, -1, -1):
            if kernel not in ends:
                continue
            for value in self._inputs(kernel):
                if grid.phase(self.values.dies[value] + 1) <= ends[kernel]:
                    self._dead.setdefault(kernel, []).append(value)
                    if self.values.may_run_again(value[1]):
                        ends[value[1]] = max(ends.get(value[1], 0), ends[kernel])
        for kernel, end in ends.items():
            for phase in range(grid.phase(kernel + 1), end + 1):
                self._column(self.again, (kernel, phase))
        for kernel, gone in self._dead.items():
            for value in gone:
                for phase in range(grid.phase(self.values.dies[value] + 1) + 1, ends[kernel] + 1):
                    self._column(self.held, (value, phase))
        return [self._at(at, idle[at]) for at in range(len(marks))]

    def _remade(self, life: bound.Life) -> bool:
        return self.again_allowed and life.tensor not in self.trace.persistent and \
            life.written and self.values.may_run_again(life.made)

    def _inputs(self, kernel: int) -> list[tuple[int, int]]:
        found = (self.values.read_by(kernel, each) for each in self.trace.kernels[kernel][1])
        return [each for each in found if each and self.trace.bytes.get(each[0], 0) > self.small]

    def _after(self, at: int) -> int:
        """The first phase in which anything runs after that mark."""
        return int(self.grid.phases[at + 1])

    def _at(self, at: int, idle: list[tuple[bound.Life, int]]) -> _Idle:
        void = [self._column(self.void, (life.tensor, life.used, self._after(at)))
                if self._remade(life) and not shift else -1 for life, shift in idle]
        for (life, shift), column in zip(idle, void):
            if column >= 0:
                self._lives[life.tensor, life.used] = life
        mark, phase = int(self.grid.marks[at]), int(self.grid.phases[at])
        dead = [(value, column) for (value, of), column in self.held.items()
                if of == phase + 1 and self.values.dies[value] < mark]
        return _Idle(*(numpy.array(each, dtype=float) for each in (
            [life.made - shift for life, shift in idle],
            [life.read - shift for life, shift in idle], [life.size for life, _ in idle])),
            numpy.array(void, dtype=int),
            numpy.array([value[1] for value, _ in dead], dtype=float),
            numpy.array([self.trace.bytes[value[0]] for value, _ in dead], dtype=float),
            numpy.array([column for _, column in dead], dtype=int),
            [self._held_until([value for value, _ in dead], each)
             for each in range(int(self.grid.phases[-1]) + 2)],
            numpy.concatenate((numpy.maximum(self.grid.phases[at + 2:], phase + 1),
                               numpy.full(at + 1, self.grid.phases[-1] + 1))))

    def _held_until(self, values_held, phase: int) -> tuple[numpy.ndarray, numpy.ndarray]:
        there = [(self.held[value, phase], self.trace.bytes[value[0]]) for value in values_held
                 if (value, phase) in self.held]
        return (numpy.array([column for column, _ in there], dtype=int),
                numpy.array([size for _, size in there], dtype=float))

    # --- rows ---

    def _runs(self, kernel: int, first: int, last: int) -> list[int]:
        """The columns of the operator's runs in phases from first to last."""
        return [self.again[kernel, phase] for phase in range(first, last + 1)
                if (kernel, phase) in self.again]

    def _row(self, ones: list[int], against: list[int], limit: float = 0.0) -> None:
        """Sum of ones <= limit + sum of against."""
        self.rows.add(ones + against, [1.0] * len(ones) + [-1.0] * len(against), limit)

    def _rows_of_operators(self) -> None:
        grid = self.grid
        for phase in range(int(grid.phases[-1]) + 1):
            waits = numpy.flatnonzero(grid.phases == phase)
            runs = [(column, self.trace.kernels[kernel][0] / 1e9)
                    for (kernel, of), column in self.again.items() if of == phase]
            self.rows.add([*(column for column, _ in runs), *waits],
                          [*(seconds for _, seconds in runs), *(-1.0 for _ in waits)], 0.0)
        for (tensor, used, phase), column in self.void.items():
            life = self._lives[tensor, used]
            self._row([column], self._runs(life.made, phase, grid.phase(life.read)))
        void_of: dict[tuple[tuple[int, int], int], list[int]] = {}
        for (tensor, used, phase), column in self.void.items():
            value = tensor, self._lives[tensor, used].made
            void_of.setdefault((value, phase), []).append(column)
        for (value, phase), column in self.held.items():
            if (value, phase - 1) in self.held:
                self._row([column], [self.held[value, phase - 1]])
        inputs = {kernel: self._inputs(kernel) for kernel, _ in self.again}
        for (kernel, phase), column in self.again.items():
            for value in inputs[kernel]:
                if (value, phase) in self.held:
                    since = grid.phase(self.values.dies[value] + 1)
                    self._row([column], [self.held[value, phase],
                                         *self._runs(value[1], since, phase)])
                for idle in void_of.get((value, phase - 1), []):
                    self._row([column, idle], self._runs(value[1], phase - 1, phase), 1.0)

    def violated(self, found: numpy.ndarray) -> int:
        """Adds, for each mark, the statements that the solution violates most; says how many."""
        added = 0
        slots = len(self.grid.marks) + 1
        # Up to each slot of three periods: a slot of this one is behind those of one period.
        waits = numpy.concatenate(([0.0], numpy.cumsum(numpy.tile(found[:slots], 3))))
        for at, idle in enumerate(self.idle):
            if len(idle.made):
                added += self._violated_at(at, idle, found, waits)
        return added

    def _intervals(self, at: int, out: bool):
        """Between this mark and each one in the period before it, or behind it: that one's kernel
        (numbers of other periods, too), seconds of computing, the slots' first and end."""
        marks, slots, period = self.grid.marks, len(self.grid.marks) + 1, self.period
        order = numpy.arange(len(marks))
        if out:
            other = numpy.concatenate((marks[at:] - period, marks[:at]))
            slot = numpy.concatenate((order[at:] - slots, order[:at]))
            first, last, begin, end = slot + 1, numpy.full(len(slot), at + 1), other, marks[at]
        else:
            other = numpy.concatenate((marks[at + 1:], marks[:at + 1] + period))
            slot = numpy.concatenate((order[at + 1:], order[:at + 1] + slots))
            first, last, begin, end = numpy.full(len(slot), at + 1), slot + 1, marks[at], other
        clock = numpy.concatenate((self.begins[:-1] - self.ideal_s, self.begins[:-1],
                                   self.begins[:-1] + self.ideal_s, [2 * self.ideal_s]))
        return other, clock[end + period] - clock[begin + 1 + period], first, last

    def _violated_at(self, at: int, idle: _Idle, found: numpy.ndarray, waits: numpy.ndarray) -> int:
        machine, added, slots = self.machine, 0, len(self.grid.marks) + 1
        over = self.used[self.grid.marks[at]] - self.budget
        size = idle.size - idle.size * numpy.where(idle.void >= 0, found[idle.void], 0.0)
        dead = idle.dead_size * found[idle.held]
        for out, disks in ((True, machine.write), (False, machine.read)):
            other, computing, first, last = self._intervals(at, out)
            total = numpy.zeros(len(other) + 1)
            if out:
                numpy.add.at(total, numpy.searchsorted(other, idle.made, "right"), size)
                numpy.add.at(total, numpy.searchsorted(other, idle.dead_made, "right"), dead)
                crossed = over + numpy.cumsum(total[::-1])[::-1][1:]
            else:
                numpy.add.at(total, numpy.searchsorted(other, idle.read, "left"), size)
                until = numpy.array([(found[columns] * sizes).sum()
                                     for columns, sizes in idle.held_until])
                crossed = over + numpy.cumsum(total)[:-1] + dead.sum() - until[idle.read_before]
            waiting = waits[last + slots] - waits[first + slots]
            for rate, host in ((machine.link, 0.0), (disks, machine.host)):
                short = (crossed - host) / rate - computing - waiting
                worst = int(short.argmax())
                if short[worst] > CLOSE_S:
                    self._statement(
                        at, rate, host, range(int(first[worst]), int(last[worst])),
                        computing[worst],
                        idle.made >= other[worst] if out else idle.read <= other[worst],
                        idle.dead_made >= other[worst] if out else idle.dead_size > 0,
                        None if out else idle.held_until[idle.read_before[worst]])
                    added += 1
        return added

    def _statement(self, at, rate, host, slots, computing, counted, counted_dead,
                   later) -> None:
        """Seconds of the link, or of the SSDs, at least."""
        idle, count = self.idle[at], len(self.grid.marks) + 1
        mark = self.grid.marks[at]
        crossed = self.used[mark] - self.budget - host + idle.size[counted].sum()
        void = counted & (idle.void >= 0)
        columns, sizes = later or ([], numpy.zeros(0))
        self.rows.add(
            [*(slot % count for slot in slots), *idle.void[void], *idle.held[counted_dead],
             *columns],
            [*(-1.0 for _ in slots), *(-idle.size[void] / rate),
             *(idle.dead_size[counted_dead] / rate), *(-sizes / rate)],
            computing - crossed / rate)


def step(trace: job_traces.Trace, budget: int, machine: bound.Machine, slots: int = 160,
         phases: int = 12, seconds: float = 60.0, again: bool = True) -> Bound:
    """Of a steady step. `again`: may operators run again? After so many seconds no rows are added
    any more."""
    programme = _Programme(trace, budget, machine, slots, phases, again)
    if programme.used.max() > budget:
        return Bound(math.inf, 0.0, True)
    count, width = len(programme.grid.marks) + 1, programme.width
    found, begin = numpy.zeros(width), time.monotonic()
    costs = numpy.zeros(width)
    costs[:count] = 1.0
    limits = numpy.full(width, 1.0)
    limits[:count] = numpy.inf
    proven = False
    while True:
        added = programme.violated(found)
        proven = not added
        if proven or time.monotonic() - begin > seconds:
            break
        solved = scipy.optimize.linprog(
            costs, programme.rows.matrix(width), programme.rows.limits,
            bounds=numpy.column_stack((numpy.zeros(width), limits)), method="highs")
        if solved.status != 0:
            raise RuntimeError(f"HiGHS: {solved.message}")
        found = solved.x
    again_s = sum(trace.kernels[kernel][0] / 1e9 * found[column]
                  for (kernel, _), column in programme.again.items())
    return Bound(programme.ideal_s + float(found[:count].sum()), again_s, proven)
