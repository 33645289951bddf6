"""Ordinary scripts, unchanged, whose blocks leave without a copy and are made again by the operator
that made them: every loss and every parameter is the same to the last bit."""

import functools
import re

import pytest
import script_runs

from script_runs import check_same
from test_scripts import SCRIPTS, SMALL


# (The others with --long: they have fewer results that can be made again, and plugin/recipes makes
# all of them again in one process.)
MOST = ("gpt_adamw.py", "convnet_bn_sgd_checkpoint.py")


@pytest.mark.parametrize("script", [
    pytest.param(script, marks=() if script in MOST else pytest.mark.long) for script in SCRIPTS])
def test_adversarial(native, with_firn, spill_dir, script):
    """Results that can be made again are dropped after every operator; all else is spilled."""
    alone = native(script, *SMALL[script])
    run = with_firn(script, *SMALL[script], budget="4GiB", dirs=[spill_dir], host="16MiB",
                    options=["--adversarial"], environment={"FIRN_REMAKE": "1"})
    check_same(run, alone)
    device = run.device()
    assert device["dropped_bytes"] > 0 and device["remakes"] > 0
    assert device["remade_bytes"] <= device["dropped_bytes"]
    assert device["lost_blocks"] == 0


# So slow that movement takes several times as long as kernels do, on a machine with other work too.
SLOW_LINK = {"FIRN_GPU_LINK": "60MiB/s", "FIRN_GPU_LINK_LATENCY": "10us"}


REPLACED = ("--replaced", "_softmax", "--steps", "16")


@pytest.fixture(scope="module")
def deep(paths, tmp_path_factory):
    """The same script by PyTorch's own allocator, at most once with each of its words."""
    @functools.cache
    def run(*words):
        return script_runs.run_native(paths, tmp_path_factory.mktemp("native"), "deep.py", *words)

    return run


def run_at_half(deep, with_firn, words, remake=None):
    """`remake`: of the knob; None: as it is by itself."""
    alone = deep(*words)
    run = with_firn("deep.py", *words, budget=alone.budget(0.5), host="4GiB",
                    environment={**SLOW_LINK, **({"FIRN_REMAKE": remake} if remake else {})})
    check_same(run, alone)
    assert run.device()["lost_blocks"] == 0
    return run


def at_half(*run):
    return run_at_half(*run).device()


def test_an_iteration_that_does_not_fit_is_chosen_for(deep, with_firn):
    """By itself; values that are made again do not move, and all move where the knob is 0."""
    moved, remade = (at_half(deep, with_firn, (), remake) for remake in ("0", None))
    assert moved["remakes"] == moved["dropped_bytes"] == 0
    assert remade["remakes"] > 100
    bytes_moved = [device["spilled_bytes"] + device["prefetched_bytes"] + device["faulted_bytes"]
                   for device in (moved, remade)]
    assert bytes_moved[1] < .9 * bytes_moved[0]


def test_what_outlives_its_iteration_does_not_keep_its_inputs(native, with_firn):
    """There is host memory for what the program keeps, and not for what that was made from."""
    alone = native("features_kept.py")
    run = with_firn("features_kept.py", budget=alone.budget(0.5), host="112MiB",
                    environment=SLOW_LINK)
    check_same(run, alone)
    assert run.device()["remakes"] > 100


@pytest.mark.long
def test_an_iteration_that_is_interrupted(deep, with_firn):
    """A choice for one iteration is given up where another begins, and taken up again."""
    assert at_half(deep, with_firn, ("--interrupted",), "1")["remakes"] > 50


def named(run, operator):
    """How often it was named as one that makes other bytes when it runs again."""
    return run.text.count(f"firn: aten::{operator} made other bytes from the same inputs")


@pytest.mark.long
def test_an_operator_that_makes_other_bytes_is_found_before_its_block_is_dropped(deep, with_firn):
    run = run_at_half(deep, with_firn, REPLACED, "1")
    assert named(run, "_softmax") == 1, run.text
    assert run.device()["remakes"] > 0


def test_an_operator_that_makes_other_bytes_is_named_once_and_left_out(native, with_firn):
    """firn_verify:all has the right bytes still."""
    words = ("--replaced", "gelu", "--steps", 3)
    alone = native("deep.py", *words)
    run = with_firn("deep.py", *words, budget="4GiB", host="64MiB",
                    options=["--adversarial", "--verify"], environment={"FIRN_REMAKE": "1"})
    check_same(run, alone)
    assert named(run, "gelu") == 1, run.text
    assert run.device()["remakes"] > 0 and run.device()["lost_blocks"] == 0


def test_products_are_made_again_with_the_settings_that_were_then(native, with_firn):
    """And the program's settings are as they were behind it."""
    alone = native("settings_between.py")
    run = with_firn("settings_between.py", budget="4GiB", host="64MiB", options=["--adversarial"],
                    environment={"FIRN_REMAKE": "1"})
    check_same(run, alone)
    program, made = (int(re.search(r"^products (\d+)$", each.text, re.MULTILINE)[1])
                     for each in (alone, run))
    assert made >= 2 * program
