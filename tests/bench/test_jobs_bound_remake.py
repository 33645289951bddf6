"""bench/jobs/bound_remake.py: never above what the best schedule takes (a search of all of them,
for tiny programs, in which operators may run again), often that; and what it says by hand."""

import itertools
import json
import os
import pathlib
import random
import subprocess
import sys

import pytest
import searches

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIRN = os.environ.get("FIRN_TEST_BINARY", str(ROOT / "build/allocator/command/firn"))
sys.path.append(str(ROOT / "bench/jobs"))
import bound  # noqa: E402
import bound_remake  # noqa: E402
import job_traces  # noqa: E402

SECOND = 10**9
LINK = bound.Machine(link=1.0)


def trace_of(kernels, sizes, persistent=(), names=()):
    """Kernels: seconds, inputs, outputs."""
    return job_traces.Trace([(ns * SECOND, ins, outs) for ns, ins, outs in kernels], sizes,
                            set(persistent), list(names))


def drawn(draw):
    """Forward kernels that make a value each, from those before or from a weight, some in place of
    what they read; then backward kernels that read them, and change the weight."""
    sizes, kernels, tensors = {0: 1}, [], [0]
    for tensor in range(1, draw.randint(2, 4)):
        ins = draw.sample(tensors, draw.randint(1, min(2, len(tensors))))
        if draw.random() < 0.25 and max(ins) > 0:
            kernels.append((1, ins, [max(ins)]))
        else:
            sizes[tensor] = draw.randint(1, 2)
            tensors.append(tensor)
            kernels.append((draw.randint(1, 2), ins, [tensor]))
    if draw.random() < 0.7:                # something large, so that memory is short
        sizes[9] = draw.randint(1, 2)
        kernels.append((1, [], [9]))
    for tensor in reversed(tensors[1:]):
        if draw.random() < 0.8:
            kernels.append((1, [tensor], []))
    outs = [0] if draw.random() < 0.5 else []
    kernels.append((1, [0], outs))
    return trace_of(kernels, sizes, [0])


class Search:
    """The least time of an iteration that ends as it began, one page a second each way. Breadth
    first over states: kernels begun, what runs and for how long still, and of each value its pages
    (only here, here and outside, outside, nowhere). A value is (tensor, kernel that wrote it);
    persistent tensors are one value each, and never nowhere."""

    def __init__(self, trace, capacity):
        self.capacity, self.kernels = capacity, []
        self.persistent = sorted(trace.persistent)
        latest = {each: (each, None) for each in self.persistent}
        self.size = {latest[each]: trace.bytes[each] for each in self.persistent}
        for at, (ns, ins, outs) in enumerate(trace.kernels):
            reads = [latest[each] for each in ins]
            replaced, makes = {}, []
            for each in outs:
                if each in trace.persistent:
                    makes.append((each, None))
                    continue
                if each in ins:
                    replaced[each, at] = latest[each]
                latest[each] = (each, at)
                makes.append((each, at))
                self.size[each, at] = trace.bytes[each]
            again = not any(each[1] is None for each in makes)
            self.kernels.append((ns // SECOND, reads, makes, replaced, again))
        self.values = sorted(self.size, key=str)
        self.at = {value: i for i, value in enumerate(self.values)}

    def starts(self):
        choices = []
        for value in self.values:
            size = self.size[value]
            choices.append([(0, 0, 0, size)] if value[1] is not None else
                           [(d, c, size - d - c, 0) for d in range(size + 1)
                            for c in range(size + 1 - d)])
        return [(0, None, 0, pages) for pages in itertools.product(*choices)
                if self.held(pages) <= self.capacity]

    def least(self):
        return min(self.least_from(start) for start in self.starts())

    def least_from(self, start):
        ends = tuple(start[3][self.at[each, None]] for each in self.persistent)
        states, seen, seconds = {start}, set(), 0
        while states:
            states = searches.closure(states, self.at_once) - seen
            for begun, running, _, pages in states:
                if begun == len(self.kernels) and running is None and \
                        tuple(pages[self.at[each, None]] for each in self.persistent) == ends:
                    return seconds
            seen |= states
            states = {after for state in states for after in self.second(state)}
            seconds += 1
        return float("inf")

    @staticmethod
    def held(pages):
        return sum(each[0] + each[1] for each in pages)

    def busy(self, running):
        """Values that what runs reads, and those that it makes."""
        if running is None:
            return set(), set()
        _, reads, makes, _, _ = self.kernels[running]
        return {self.at[each] for each in reads}, {self.at[each] for each in makes}

    def at_once(self, state):
        """What takes no time: pages are dropped, a kernel begins."""
        begun, running, left, pages = state
        reads, makes = self.busy(running)
        for i, value in enumerate(self.values):
            here, both, outside, nowhere = pages[i]
            if i in reads or i in makes:
                continue
            if both:
                yield begun, running, left, self.put(pages, i, (here, both - 1, outside + 1,
                                                                 nowhere))
            if here and value[1] is not None:
                yield begun, running, left, self.put(pages, i, (here - 1, both, outside,
                                                                 nowhere + 1))
        if running is None:
            if begun < len(self.kernels):
                yield from self.run(begun, begun + 1, pages)
            for kernel in range(begun):
                if self.kernels[kernel][4]:
                    yield from self.run(kernel, begun, pages)

    @staticmethod
    def put(pages, i, of):
        return (*pages[:i], of, *pages[i + 1:])

    def run(self, kernel, begun, pages):
        seconds, reads, makes, replaced, _ = self.kernels[kernel]
        if any(pages[self.at[each]][2] or pages[self.at[each]][3] for each in reads):
            return
        after = list(pages)
        for each in makes:
            if each in replaced:
                here, both, outside, nowhere = after[self.at[replaced[each]]]
                after[self.at[replaced[each]]] = (0, 0, outside + both, nowhere + here)
        for each in makes:
            after[self.at[each]] = (self.size[each], 0, 0, 0)
        if self.held(after) <= self.capacity:
            yield begun, kernel, seconds, tuple(after)

    def second(self, state):
        begun, running, left, pages = state
        reads, makes = self.busy(running)
        if running is not None:
            left -= 1
        after_running = None if left == 0 else running
        outs = [None] + [i for i, each in enumerate(pages) if each[0] and i not in makes]
        room = self.held(pages) < self.capacity
        ins = [None] + [i for i, each in enumerate(pages) if room and each[2]]
        for out, into in itertools.product(outs, ins):
            after = [list(each) for each in pages]
            if out is not None:
                after[out][0] -= 1
                after[out][1] += 1
            if into is not None:
                after[into][1] += 1
                after[into][2] -= 1
            yield begun, after_running, left, tuple(map(tuple, after))


def programs(count, seed):
    draw = random.Random(seed)
    for _ in range(count):
        trace = drawn(draw)
        needs = max(sum(trace.bytes[each] for each in {*ins, *outs})
                    for _, ins, outs in trace.kernels)
        if needs < job_traces.summary(trace)["peak_bytes"]:
            yield trace, needs


def test_no_schedule_is_faster():
    short = equal = made_again = 0
    for trace, capacity in programs(25, 5):
        found = bound_remake.step(trace, capacity, LINK)
        least = Search(trace, capacity).least()
        assert found.proven
        assert found.step_s <= least + 1e-5, (trace, capacity)
        if least > trace.seconds:
            short += 1
            equal += found.step_s > least - 1.01   # the search knows whole seconds only
            made_again += found.again_s > 0
    assert short > 8
    assert equal > 0.6 * short
    assert made_again > 0.5 * short


def layers(count, mib=64, persistent=True):
    """A product, what is made of it element by element, and its gradient for each layer."""
    ms, kernels, sizes, weights, names = 10**6, [], {}, [], []
    for layer in range(count):
        weight, product, made = 4 * layer, 4 * layer + 1, 4 * layer + 2
        sizes |= {weight: mib << 20, product: 2 * mib << 20, made: 2 * mib << 20}
        weights += [weight] if persistent else []
        kernels += [(4 * ms, [weight] + ([made - 4] if layer else []), [product]),
                    (ms // 4, [product], [made])]
        names += ["mm", "gelu"]
    for layer in reversed(range(count)):
        weight, product, made, gradient = range(4 * layer, 4 * layer + 4)
        sizes[gradient] = mib << 20
        kernels += [(8 * ms, [weight, made], [gradient]), (ms // 4, [product], [])]
        names += ["mm", "gelu_backward"]
    for layer in range(count):
        kernels.append((ms // 4, [4 * layer, 4 * layer + 3], [4 * layer]))
        names.append("_fused_adamw_")
    return job_traces.Trace(kernels, sizes, set(weights), names)


MACHINE = bound.Machine(link=20e9, read=8e9, write=6e9, host=1 << 30)


def test_nothing_again_is_the_bound_of_moving_alone():
    # (Intervals that overlap say more together: bound.py takes disjoint ones.)
    equal = tried = 0
    for trace, capacity in programs(60, 8):
        moving = bound.step(trace, capacity, LINK).step_s
        found = bound_remake.step(trace, capacity, LINK, again=False)
        assert found.step_s >= moving - 1e-5, (trace, capacity)
        tried += 1
        equal += found.step_s < moving + 1e-5
    assert tried > 30 and equal > 0.8 * tried
    trace = layers(12)
    peak = job_traces.summary(trace)["peak_bytes"]
    for percent in (80, 60, 40, 30):
        assert bound_remake.step(trace, peak * percent // 100, MACHINE, again=False).step_s == \
            pytest.approx(bound.step(trace, peak * percent // 100, MACHINE).step_s, rel=0.002)


def test_more_memory_and_a_faster_link_are_never_slower():
    trace = layers(10)
    peak = job_traces.summary(trace)["peak_bytes"]
    by_budget = [bound_remake.step(trace, peak * percent // 100, MACHINE).step_s
                 for percent in range(20, 101, 10)]
    assert by_budget == sorted(by_budget, reverse=True)
    assert by_budget[0] > 1.2 * by_budget[-1] and by_budget[-1] == pytest.approx(trace.seconds)
    by_link = [bound_remake.step(trace, peak * 3 // 10, bound.Machine(rate)).step_s
               for rate in (2e9, 5e9, 10e9, 20e9, 40e9)]
    assert by_link == sorted(by_link, reverse=True)
    assert by_link[0] > 1.2 * by_link[-1]


def test_running_again_is_never_slower_and_coarser_is_lower():
    trace = layers(10)
    budget = job_traces.summary(trace)["peak_bytes"] * 4 // 10
    moving = bound_remake.step(trace, budget, MACHINE, again=False).step_s
    fine = bound_remake.step(trace, budget, MACHINE, phases=64)
    assert trace.seconds < fine.step_s < 0.9 * moving and fine.again_s > 0
    for slots, phases in ((160, 8), (20, 8), (5, 3), (1, 1)):
        assert bound_remake.step(trace, budget, MACHINE, slots, phases).step_s \
            <= fine.step_s + 1e-5


@pytest.mark.parametrize("percent", [70, 50, 35])
def test_no_simulation_is_faster(tmp_path, percent):
    trace = layers(10)
    job_traces.write(trace, str(tmp_path / "step"))
    budget = job_traces.summary(trace)["peak_bytes"] * percent // 100 >> 20 << 20
    done = subprocess.run(
        [FIRN, "simulate", str(tmp_path / "step"), "--gpu-memory", f"{budget >> 20}MiB", "--pcie",
         "20GB/s", "--ssd-read", "8GB/s", "--ssd-write", "6GB/s", "--host", "1GiB", "--remake",
         "on", "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    simulated = json.loads(done.stdout)
    assert simulated["remade_bytes"] > 0
    found = bound_remake.step(trace, budget, MACHINE).step_s
    assert 0.5 < found / simulated["steady_s"] <= 1 + 1e-6
    assert simulated["steady_s"] < bound.step(trace, budget, MACHINE).step_s


def test_by_hand():
    # A value of 2 lies idle for three seconds beside one of 3 in room for 4: half of it goes out
    # and comes back at .1 a second, or its operator runs again for one second.
    kernels = [(1, [], [0]), (3, [], [1]), (1, [0], [])]
    slow = bound.Machine(link=0.1)

    def found(**options):
        trace = trace_of(kernels, {0: 2, 1: 3}, names=options.pop("names", ()))
        return bound_remake.step(trace, options.pop("budget", 4), slow, **options)

    assert found(again=False).step_s == pytest.approx(5 + 10 + 10)
    assert found().step_s == pytest.approx(5.5)      # a half of the operator: a bound takes parts
    assert found().again_s == pytest.approx(0.5)
    assert found(budget=5).step_s == pytest.approx(5)
    assert found(budget=2).step_s == float("inf")
    # What other GPUs take part in does not run again.
    assert found(names=["all_reduce", "mm", "mm"]).step_s == pytest.approx(25)


def test_an_input_that_is_gone_is_made_again_or_held():
    # 0 makes 1 (in three seconds), 1 makes 2 (in one); 1 is needed no more, 2 at the end.
    kernels = [(3, [], [1]), (1, [1], [2]), (5, [], [3]), (1, [2], [])]
    never = bound.Machine(link=1e-6)
    assert bound_remake.step(trace_of(kernels, {1: 1, 2: 1, 3: 4}), 4, never).step_s == \
        pytest.approx(10 + 1 + 3)
    # As small as a hundredth, it is held: in the room that 3 leaves.
    assert bound_remake.step(trace_of(kernels, {1: 1, 2: 100, 3: 400}), 401, never).step_s == \
        pytest.approx(10 + 1)
    # What is idle and at hand costs nothing; what is idle and nowhere is made again first.
    kernels[3] = (1, [2, 1], [])
    assert bound_remake.step(trace_of(kernels, {1: 1, 2: 1, 3: 4}), 5, never).step_s == \
        pytest.approx(10 + 1)
    assert bound_remake.step(trace_of(kernels, {1: 1, 2: 1, 3: 4}), 4, never).step_s == \
        pytest.approx(10 + 1 + 3)
