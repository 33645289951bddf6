"""Every call that works with the native allocator gives the same answer with Firn's, or is listed
below with the reason; while nothing, every second block, or everything is spilled. compare.py
prints the answers."""

import os

import compare
import pytest

SIZES = "small blocks come in eight sizes to a doubling; what a block takes is counted"
DIFFERENT = {
    "call_sizes_are_rounded_alike": SIZES,
    "call_segments_add_up": SIZES,
    "call_out_of_memory_is_counted":
        "what exceeds the whole budget is refused without giving anything back first: no retry",
    "call_an_allocator_of_its_own":
        "natively, what waited for other streams is not looked at while a pool is in use, and "
        "more memory is taken",
    "call_negative_sizes": "natively -1 bytes are 0",
}


@pytest.fixture(scope="module")
def settings():
    found = compare.environment(os.environ.get("FIRN_TEST_BUILD"))
    if "None" in found["LD_PRELOAD"] or not found["LD_PRELOAD"]:
        pytest.skip("Firn's libraries are not built or not installed")
    return found


@pytest.fixture(scope="module")
def native():
    return {}


# Which calls are also made while half, or all, of their memory is spilled. Not graph_calls with
# all: what a capture uses has to be on the device when it begins, for bringing it back cannot be
# part of a graph.
SPILLED = {"graph_calls": ["half"], "pool_calls": ["half", "all"], "snapshot_calls": ["half"],
           "stats_calls": ["half", "all"], "wrong_calls": ["half"]}
# And with everything spilled besides:
FREED = "what is freed while its bytes are away occupies nothing that other streams' work could use"
DIFFERENT_WHEN_SPILLED = {"call_active_waits_for_other_streams": FREED,
                          "call_peak_of_active_while_one_waits": FREED}
# Not made then, nor is anything else that uses memory which the program has freed: nobody knows of
# a graph's use of it, and what leaves from there leaves under the graph.
ONLY_UNSPILLED = {"call_inputs_that_are_freed_before_their_graph"}
RUNS = [pytest.param(path, state, id="-".join(filter(None, (path.stem, state))),
                     # Where everything is spilled too, half of it is with --long.
                     marks=pytest.mark.long if state == "half" and "all" in states else ())
        for path in compare.files() for states in [SPILLED.get(path.stem, [])]
        for state in ["", *states]]


@pytest.mark.parametrize("path, state", RUNS)
def test_calls_answer_as_natively(path, state, settings, native):
    if path not in native:
        native[path] = compare.answers(path, settings)
    names = set(native[path]) - (ONLY_UNSPILLED if state else set())
    answers = compare.compare(path, settings, names, state, native[path])
    assert answers
    assert [name for name, found, _ in answers if "error" in found] == []
    different = {**DIFFERENT, **DIFFERENT_WHEN_SPILLED} if state == "all" else DIFFERENT
    assert {name: (found, firn) for name, found, firn in answers
            if not compare.agrees(found, firn) and
            (name not in different or "error" in firn)} == {}
