"""Planned places, which are there by themselves: at the edge of its budget a job maps less than
without them, and its bits are the same; far below it, where others would need the region, it has
none."""

import pytest

from script_runs import check_budget, check_same
from test_preload_only import run_preloaded

ARGUMENTS = ("--steps", 12, "--layers", 3, "--batch", 10)
SCRIPT = "gpt_adamw.py"
PRELOADED = ("graph_between.py", "--steps", 40, "--capture-at", 1000)


@pytest.fixture
def alone(native):
    return native(SCRIPT, *ARGUMENTS)


@pytest.fixture
def peak(with_firn):
    free = with_firn(SCRIPT, *ARGUMENTS[:1], 2, *ARGUMENTS[2:], budget="4GiB")
    return free.device()["peak_allocated_bytes"]


def test_at_the_edge_less_is_mapped(alone, peak, with_firn, spill_dir):
    budget = peak + (2 << 20) - peak % (2 << 20)
    maps = {}
    for places in ("0", "1"):
        run = with_firn(SCRIPT, *ARGUMENTS, budget=budget, dirs=[spill_dir], host="256MiB",
                        environment={} if places == "1" else {"FIRN_PLACES": places})
        check_same(run, alone)
        check_budget(run, budget)
        device = run.device()
        assert (device["places"]["given"] > 100) == (places == "1"), device["places"]
        maps[places] = device["maps"]
    assert maps["1"] < .9 * maps["0"], maps


def test_at_half_the_memory_there_are_none(alone, with_firn, spill_dir):
    budget = alone.budget(0.5)
    run = with_firn(SCRIPT, *ARGUMENTS, budget=budget, dirs=[spill_dir])
    check_same(run, alone)
    check_budget(run, budget)
    assert run.device()["spilled_bytes"] > 0
    assert run.device()["places"]["given"] == 0


def test_a_graph_captured_when_there_are_places(native, with_firn, spill_dir):
    alone = native("graph_between.py")
    budget = alone.budget(1.04)
    run = with_firn("graph_between.py", budget=budget, dirs=[spill_dir])
    check_same(run, alone)
    check_budget(run, budget)
    assert run.device()["places"]["given"] > 50, run.device()


def test_under_the_library_in_front_of_the_driver(paths, native, spill_dir, tmp_path):
    alone = native(*PRELOADED)
    budget = alone.budget(1.04)
    run = run_preloaded(paths, tmp_path, *PRELOADED, budget=budget, dirs=[spill_dir])
    check_same(run, alone)
    check_budget(run, budget)
    assert run.device()["places"]["given"] > 50, run.device()
