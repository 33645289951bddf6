"""Random programs on the modelled machine: lifetimes are never slower than age by more than 2 %
(bench/simulate/random_programs.py draws the programs)."""

import os
import sys

import pytest
from firn_command import ROOT, find_binary

sys.path.insert(0, str(ROOT / "bench" / "simulate"))
import random_programs  # noqa: E402

PROGRAMS = 20 if os.environ.get("FIRN_TEST_LENGTH") == "quick" else 200
AT_A_TIME = 20


@pytest.mark.parametrize("first", range(1, PROGRAMS + 1, AT_A_TIME))
def test_lifetimes_are_not_slower_than_age(tmp_path, first):
    slower, compared = [], 0
    for seed in range(first, first + AT_A_TIME):
        replay = (f"bench/simulate/random_programs.py --programs 1 --seed {seed} "
                  f"--firn {find_binary()}")
        try:
            kind, age, lifetime = random_programs.compare(find_binary(), seed, tmp_path)
        except RuntimeError as error:
            pytest.fail(f"{error}\nreplay: {replay}")
        if age is None:
            continue
        compared += 1
        if lifetime is None:
            slower.append(f"{kind}: no room with lifetimes, though with age\nreplay: {replay}")
        elif lifetime > random_programs.SLOWER_MOST * age:
            slower.append(f"{kind}: {lifetime:.6f} s with lifetimes, {age:.6f} s with age\n"
                          f"replay: {replay}")
    assert not slower, "\n".join(slower)
    assert compared >= AT_A_TIME // 2, "most programs found no room: nothing was compared"
