"""Lifetimes against age in programs that run, at half the memory they need, on a modelled link and
a modelled SSD (bench/lifetimes/live.py): waits are few, and nearly all comes before it is asked
for. Long: ten minutes, and its seconds are the wall clock's."""

import sys

import pytest

from script_runs import ROOT

sys.path.insert(0, str(ROOT / "bench" / "lifetimes"))
import live  # noqa: E402

STEPS = 7
TRIES = 3  # times are the wall clock's: other work on this machine may take it for a while
STALL_PART_MOST = 1 / 5
PREFETCHED_OVER_FAULTED_LEAST = 20


def shortcomings(found):
    age, lifetime = found["age"], found["lifetime"]
    if lifetime["stall_s"] > STALL_PART_MOST * age["stall_s"]:
        yield f"waited {lifetime['stall_s']:.3f} s a step, by age {age['stall_s']:.3f} s"
    if lifetime["prefetched_bytes"] < PREFETCHED_OVER_FAULTED_LEAST * lifetime["faulted_bytes"]:
        yield (f"prefetched {lifetime['prefetched_bytes']:.0f} bytes a step, "
               f"faulted {lifetime['faulted_bytes']:.0f}")


@pytest.mark.long
@pytest.mark.parametrize("name", live.PROGRAMS)
def test_lifetimes_hide_what_age_waits_for(paths, tmp_path, spill_dir, name):
    program = live.PROGRAMS[name]
    said = []
    for _ in range(TRIES):  # all of it: the machine is as fast as it is now
        unlimited = live.measure(paths, tmp_path, program, STEPS)
        machine = live.Machine.fit(unlimited, fraction=0.5, ratio=2, host="128MiB")
        found = live.compare(paths, tmp_path, spill_dir, program, unlimited, machine)
        assert found["age"]["equal"] and found["lifetime"]["equal"]
        assert found["age"]["stall_s"] > 0.05 * unlimited.step_s(), "nothing to hide"
        assert found["lifetime"]["prefetched_bytes"] > 0
        assert found["lifetime"]["steps"] >= 2
        said.append(list(shortcomings(found)))
        if not said[-1]:
            return
    pytest.fail(str(said))
