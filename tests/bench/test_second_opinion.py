"""bench/order/exact.py beside every order of small graphs, and what second_opinion.py calls wrong."""

import itertools
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench/order"))


@pytest.fixture(scope="module")
def opinion():
    import second_opinion
    return second_opinion


@pytest.fixture
def drawn(opinion, tmp_path):
    """A graph of `operators` from a seed, its problem, and its least peak by trying every order."""
    def draw(kind, operators, seed):
        prefix = str(tmp_path / "drawn")
        opinion.graphs.write(prefix, kind, operators, seed)
        graph = opinion.check.Graph(prefix)
        return graph, opinion.exact.Problem(graph)
    return draw


def least(graph, problem):
    found = None
    for order in itertools.permutations(range(problem.count)):
        places = {op: at for at, op in enumerate(order)}
        if all(places[before] < places[op] for op in order for before in problem.before[op]):
            names = [graph.program[op] for op in order]
            graph.check_order(names)
            peak = max(graph.profile(names))
            found = peak if found is None else min(found, peak)
    return found


def small(drawn):
    for seed in range(12):
        yield drawn("random", 6, seed)


def test_model_s_integer_program_finds_the_least_of_every_order(opinion, drawn):
    pytest.importorskip("scipy.optimize")
    different = 0
    for graph, problem in small(drawn):
        answer, expected = opinion.exact.model_ilp(problem, 30), least(graph, problem)
        assert answer.proven and answer.value == pytest.approx(expected, rel=1e-6)
        different += expected < problem.peak_of_program()
    assert different > 2


def test_constraint_programming_finds_the_least_of_every_order(opinion, drawn):
    if not (opinion.PEER / "installed").exists():
        pytest.skip("no OR-Tools (bench/order/second_opinion.py installs it)")
    opinion.install()
    for graph, problem in small(drawn):
        answer = opinion.exact.least_peak(problem, 30)
        assert answer.proven and answer.value == answer.bound == least(graph, problem)
    # A layout whose height is above its load: 3 buffers of 2, 1 and 2 that meet in turn.
    assert opinion.exact.least_height([(0, 2, 2), (1, 3, 1), (2, 4, 2)], 10).value == 3


def test_the_program_s_order_is_the_problem_s(opinion, drawn):
    for kind, operators in (("step", 40), ("random", 60)):
        graph, problem = drawn(kind, operators, 3)
        assert problem.peak_of_program() == max(graph.profile(graph.program))
        for op in range(problem.count):
            assert problem.earliest(op) <= op <= problem.latest(op)


def test_below_what_is_proven_is_wrong(opinion):
    answer = opinion.exact.Answer(100, 100, True, True, 0.1)
    found = {"peak": 100, "bound": 100}
    assert opinion.wrong(found, answer) == ""
    assert "below the proven bound 100" in opinion.wrong({"peak": 99, "bound": 90}, answer)
    assert "below firn's bound 101" in opinion.wrong({"peak": 101, "bound": 101}, answer)
    assert opinion.wrong({"peak": 99, "bound": 90}, answer, 0.02) == ""


def test_a_line_counts_what_was_reached(opinion):
    line = opinion.Line()
    found = {"peak": 103, "bound": 90, "height": 103, "seconds": 0.5}
    for value, proven in ((100, True), (103, True), (110, False)):
        line.peak(found, opinion.exact.Answer(value, 100 if proven else 80, proven, True, 2.0))
        line.height(found, None)
    cells = dict(zip(opinion.HEAD, line.cells()))
    assert (cells["graphs"], cells["proven by CP-SAT"], cells["firn there"]) == (3, 2, 1)
    assert cells["worst gap, %"] == "3.000" and cells["firn at or below its best"] == 2
