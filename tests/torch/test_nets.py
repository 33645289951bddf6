"""Ordinary scripts and the small loop that goes on, under all nets at once: what leaves is compared
with its copy, what has a copy is open for reading only, what arrives is poisoned first. A use that
goes unseen is a difference, a fault or a wrong bit."""

import pytest

from script_runs import NETS, check_budget, check_nets, check_same
from test_scripts import SMALL

# Of each kind one: several streams, a network with buffers that operators update, autocast.
SCRIPTS = [pytest.param("gpt_adamw.py", marks=pytest.mark.quick), "convnet_bn_sgd_checkpoint.py",
           "autocast_accumulation.py", "side_streams.py"]


@pytest.mark.parametrize("policy", ["lifetime", "age"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_use_is_seen(native, with_firn, spill_dir, script, policy):
    alone = native(script, *SMALL[script])
    budget = alone.budget(0.6)
    run = with_firn(script, *SMALL[script], budget=budget, dirs=[spill_dir], host="64MiB",
                    options=[*NETS, "--watch", "0"], environment={"FIRN_POLICY": policy})
    check_same(run, alone)
    check_budget(run, budget)
    check_nets(run)


@pytest.mark.long
@pytest.mark.parametrize("script", ["lstm.py", "hf_trainer.py", "dataloader_pinned.py"])
def test_every_use_of_the_others_is_seen(native, with_firn, spill_dir, script):
    test_every_use_is_seen(native, with_firn, spill_dir, script, "lifetime")


def test_every_use_is_seen_when_all_leaves(native, with_firn, spill_dir):
    script = "gpt_adamw.py"
    run = with_firn(script, *SMALL[script], budget="4GiB", dirs=[spill_dir], host="64MiB",
                    options=[*NETS, "--adversarial"])
    check_same(run, native(script, *SMALL[script]))
    check_nets(run)


def test_a_loop_that_goes_on(native, with_firn, spill_dir):
    arguments = ("--steps", 60)
    alone = native("small_loop.py", *arguments)
    budget = alone.budget(0.5)
    run = with_firn("small_loop.py", *arguments, "--dir", spill_dir, budget=budget, host="16MiB",
                    dirs=[spill_dir], options=NETS)
    check_same(run, alone)
    check_nets(run)
