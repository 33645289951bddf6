"""What the cases of voids.py and surroundings.py share: see there."""

import sys
import traceback
import warnings

import torch
from firn_recipes import (RESULT, UNSEEN, WRITTEN, check_again, keep, make_again, recipe,
                          storage_bytes)

CASES, ALONE = {}, {}
GELU = "aten::gelu"


def case(function):
    CASES[function.__name__] = function
    return function


def alone(function):
    """A case after which recipes stand no more: run where its name is given."""
    ALONE[function.__name__] = function
    return function


def big(seed=1, shape=(64, 48)):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).cuda()


def gelu(x):
    y = torch.nn.functional.gelu(x)
    assert recipe(y) == GELU, recipe(y)
    return y


def stands(tensor, name=GELU):
    assert recipe(tensor) == name, recipe(tensor)
    assert check_again(tensor, ()) == 1


def void(tensor, why):
    """And it is not made again: its bytes stay."""
    found = recipe(tensor)
    assert found.partition(": ")[2] == why, (found, why)
    before = storage_bytes(tensor)
    assert make_again(tensor) == why and torch.equal(storage_bytes(tensor), before)


def none_of(tensor):
    """None is kept. (One of an earlier tensor at its address has ended with that.)"""
    found = recipe(tensor)
    assert found == "" or found.endswith((": " + RESULT, ": " + WRITTEN, ": " + UNSEEN)), found


def main():
    warnings.simplefilter("ignore")
    assert keep(), "Firn is not in front of the driver"
    bad = 0
    for name in sys.argv[1:] or CASES:
        try:
            (CASES | ALONE)[name]()
            print(name, "ok", flush=True)
        except Exception:
            bad += 1
            print(f"{name}: {traceback.format_exc()}", flush=True)
    return 1 if bad else 0
