"""Exact solvers from PyPI for graphs of `firn order`: they share with it neither code nor method.

least_peak: constraint programming (OR-Tools' CP-SAT). An operator is a place in the order, a
storage an interval from its maker to its last reader, and the peak the capacity of a cumulative
constraint.
least_height: the same solver, storages as rectangles that may not overlap, lives given.
model_ilp: the integer program that MODeL publishes for the order (Steiner et al., "MODeL: Memory
Optimizations for Deep Learning", ICML 2023), solved by HiGHS (scipy): of each storage and step
whether it is created and whether it is preserved. Writes in place, which MODeL has not, only order
operators. Operators may share a step there, which saves nothing: all that they name is alive in it.
"""

from __future__ import annotations

import dataclasses
import time

THROUGHOUT = ("param", "buffer", "m", "v", "const")


@dataclasses.dataclass(frozen=True)
class Answer:
    value: int            # bytes; of no worth where found is False
    bound: int            # no order, or no layout, has less
    proven: bool
    found: bool
    seconds: float


class Problem:
    """A graph (check.Graph) by numbers: what precedes what, and each storage's maker and users."""

    def __init__(self, graph):
        number = {op: at for at, op in enumerate(graph.program)}
        self.count = len(number)
        self.before = [set() for _ in range(self.count)]
        self.always = 0                                   # bytes alive whatever the order is
        self.lives = []                                   # (bytes, maker or None, users)
        writer, readers, users = {}, {}, {}
        for op in graph.program:
            at = number[op]
            for storage in graph.named(op):
                users.setdefault(storage, []).append(at)
                if storage in writer:
                    self.before[at].add(writer[storage])
            for storage in graph.writes[op]:
                self.before[at].update(readers.pop(storage, ()))
                writer[storage] = at
            for storage in graph.reads[op] - graph.writes[op]:
                readers.setdefault(storage, set()).add(at)
            self.before[at].discard(at)
        for storage, (size, kind) in graph.storages.items():
            named = users.get(storage, [])
            if kind in THROUGHOUT or (kind == "batch" and not named):
                self.always += size
            elif named and size:
                self.lives.append((size, None if kind == "batch" else named[0], named))
        self.ancestors, self.descendants = self._closures()

    def _closures(self):
        above = [set() for _ in range(self.count)]
        below = [set() for _ in range(self.count)]
        for at in range(self.count):  # the program's order is a valid one
            for each in self.before[at]:
                above[at] |= above[each] | {each}
            for each in above[at]:
                below[each].add(at)
        return above, below

    def earliest(self, op):
        return len(self.ancestors[op])

    def latest(self, op):
        return self.count - 1 - len(self.descendants[op])

    def peak_of_program(self):
        alive = [self.always] * self.count
        for size, maker, users in self.lives:
            for at in range(0 if maker is None else maker, users[-1] + 1):
                alive[at] += size
        return max(alive, default=self.always)

    def last_users(self, users):
        """Those of them that none of the others must follow."""
        return [each for each in users if not self.descendants[each] & set(users)]


def _solve(model, always, seconds, threads):
    from ortools.sat.python import cp_model
    begin = time.monotonic()
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = threads
    status = solver.solve(model)
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return Answer(always + round(solver.objective_value) if found else 0,
                  always + max(0, round(solver.best_objective_bound)), status == cp_model.OPTIMAL,
                  found, time.monotonic() - begin)


def least_peak(problem: Problem, seconds: float, threads: int = 2) -> Answer:
    from ortools.sat.python import cp_model
    model = cp_model.CpModel()
    last = problem.count - 1
    place = [model.new_int_var(problem.earliest(op), problem.latest(op), f"p{op}")
             for op in range(problem.count)]
    model.add_all_different(place)
    for op in range(problem.count):
        for before in problem.before[op]:
            model.add(place[before] < place[op])
        model.add_hint(place[op], op)
    intervals, sizes = [], []
    for at, (size, maker, users) in enumerate(problem.lives):
        ends = problem.last_users(users)
        end = place[ends[0]] if len(ends) == 1 else model.new_int_var(0, last, f"e{at}")
        if len(ends) > 1:
            model.add_max_equality(end, [place[each] for each in ends])
        begin = 0 if maker is None else place[maker]
        length = model.new_int_var(1, problem.count, f"l{at}")
        intervals.append(model.new_interval_var(begin, length, end + 1, f"i{at}"))
        sizes.append(size)
    peak = model.new_int_var(0, problem.peak_of_program() - problem.always, "peak")
    model.add_cumulative(intervals, sizes, peak)
    model.minimize(peak)
    return _solve(model, problem.always, seconds, threads)


def least_height(lives, seconds: float, threads: int = 2) -> Answer:
    """Of (begin, end, bytes), the end not included."""
    from ortools.sat.python import cp_model
    model = cp_model.CpModel()
    most = sum(size for _, _, size in lives)
    height = model.new_int_var(0, most, "height")
    across, up = [], []
    for at, (begin, end, size) in enumerate(lives):
        offset = model.new_int_var(0, most - size, f"o{at}")
        model.add(offset + size <= height)
        across.append(model.new_fixed_size_interval_var(begin, end - begin, f"x{at}"))
        up.append(model.new_fixed_size_interval_var(offset, size, f"y{at}"))
    model.add_no_overlap_2d(across, up)
    model.add_cumulative(across, [size for _, _, size in lives], height)
    model.minimize(height)
    return _solve(model, 0, seconds, threads)


class _Rows:
    """Rows of a sparse system: sums of coefficients times variables, at most a number."""

    def __init__(self):
        self.values, self.rows, self.columns, self.most = [], [], [], []

    def at_most(self, terms, most):
        for column, value in terms:
            self.rows.append(len(self.most))
            self.columns.append(column)
            self.values.append(value)
        self.most.append(most)


def model_ilp(problem: Problem, seconds: float) -> Answer:
    """Bytes are counted in parts of the largest that they can be: HiGHS works with tolerances. So
    an answer is one to a part in a million."""
    import numpy
    import scipy.optimize
    import scipy.sparse

    begin, steps = time.monotonic(), problem.count
    made = {(op, at): number for number, (op, at) in enumerate(
        (op, at) for op in range(steps)
        for at in range(problem.earliest(op), problem.latest(op) + 1))}
    preserved, count = {}, len(made)
    for number, (_, maker, users) in enumerate(problem.lives):
        first = 0 if maker is None else problem.earliest(maker) + 1
        for at in range(first, max(problem.latest(each) for each in users) + 1):
            preserved[number, at] = count
            count += 1
    peak = count
    rows = _Rows()
    for op in range(steps):
        mine = [made[op, at] for at in range(problem.earliest(op), problem.latest(op) + 1)]
        rows.at_most([(each, 1) for each in mine], 1)
        rows.at_most([(each, -1) for each in mine], -1)
        for before in problem.before[op]:
            for at in range(problem.earliest(op), problem.latest(op) + 1):
                earlier = [(made[before, step], -1) for step in range(at)
                           if (before, step) in made]
                rows.at_most([(made[op, at], 1), *earlier], 0)
    scale = problem.peak_of_program() - problem.always or 1
    memory: list[list[tuple[int, float]]] = [[] for _ in range(steps)]
    for number, (size, maker, users) in enumerate(problem.lives):
        for at in range(steps):
            create = made.get((maker, at))
            keep = preserved.get((number, at))
            if create is not None:
                memory[at].append((create, size / scale))
            if keep is None:
                continue
            memory[at].append((keep, size / scale))
            if create is not None:
                rows.at_most([(create, 1), (keep, 1)], 1)
            # Kept at a step: kept, or created, at the one before it. A batch is there at first.
            if at > 0 or maker is not None:
                earlier = [preserved.get((number, at - 1)), made.get((maker, at - 1))]
                rows.at_most([(keep, 1), *((each, -1) for each in earlier if each is not None)],
                             0)
            for user in users:
                if user != maker and (user, at) in made:
                    rows.at_most([(made[user, at], 1), (keep, -1)], 0)
    for terms in memory:
        rows.at_most([*terms, (peak, -1)], 0)
    matrix = scipy.sparse.csr_matrix((rows.values, (rows.rows, rows.columns)),
                                     shape=(len(rows.most), count + 1))
    whole = numpy.ones(count + 1)
    whole[peak] = 0
    cost = 1 - whole
    found = scipy.optimize.milp(
        cost, integrality=whole, bounds=scipy.optimize.Bounds(0, 1),
        constraints=scipy.optimize.LinearConstraint(matrix, -numpy.inf, rows.most),
        options={"time_limit": seconds, "mip_rel_gap": 1e-7})
    value = found.fun if found.x is not None else 0
    bound = found.mip_dual_bound if found.mip_dual_bound is not None else 0
    return Answer(problem.always + round(value * scale),
                  problem.always + max(0, round(bound * scale)), found.status == 0,
                  found.x is not None, time.monotonic() - begin)
