"""firn.relay on the software GPU: the plain loop's bits, dropout included, at a part of the memory
that the loop needs, and memory that does not grow with depth."""

import pytest

from script_runs import check_budget, check_same, run_native

SCRIPT = "relay_gpt.py"
SMALL = ("--steps", 3, "--layers", 2, "--length", 32, "--batch", 4, "--width", 64)


def test_bits_and_draws_of_the_loop(native):
    """Dropout too: each micro-batch draws what it draws in the loop, and the generator is left
    where the loop leaves it. (The script makes an error of each warning.)"""
    loop, relay = native(SCRIPT), native(SCRIPT, "--relay")
    assert relay.results() == loop.results()
    assert relay.values("offset") == loop.values("offset") != ["0"]
    assert int(relay.values("beside")[0]) < 0.6 * int(loop.values("beside")[0])


@pytest.mark.parametrize("arguments", [
    ("--clip", 0.5), pytest.param(("--fused",), marks=pytest.mark.long),
    pytest.param(("--eager", "no"), marks=pytest.mark.long),
    pytest.param(("--micro-batches", 8), marks=pytest.mark.long)], ids=str)
def test_options(native, arguments):
    arguments = (*SMALL, "--batch", 8, *arguments)
    assert native(SCRIPT, "--relay", *arguments).results() == native(SCRIPT, *arguments).results()


@pytest.mark.parametrize("fraction", [
    pytest.param(1.0, marks=pytest.mark.long), 0.5, 0.2])
def test_parts_of_the_loops_memory(native, with_firn, spill_dir, fraction):
    """Of what the loop needs natively."""
    loop = native(SCRIPT)
    budget = loop.budget(fraction)
    run = with_firn(SCRIPT, "--relay", budget=budget, dirs=[spill_dir], host="64MiB")
    check_same(run, loop)
    check_budget(run, budget)
    assert run.device()["spilled_bytes"] > 0


def test_adversarial(native, with_firn, spill_dir):
    """Everything that may leave leaves after every operator: each use in the threads is seen."""
    run = with_firn(SCRIPT, "--relay", *SMALL, budget="4GiB", dirs=[spill_dir], host="16MiB",
                    options=["--adversarial"])
    check_same(run, native(SCRIPT, *SMALL))
    assert run.device()["spilled_bytes"] > 0
    assert run.device()["lost_blocks"] == 0


@pytest.mark.parametrize("fraction, least, most", [
    pytest.param(1.3, 6, 6, marks=pytest.mark.long), (0.9, 1, 5),
    pytest.param(0.3, 0, 0, marks=pytest.mark.long)])
def test_graphs_are_kept_where_they_fit(native, with_firn, spill_dir, fraction, least, most):
    """keep="auto", from the third step on: the same bits, and parts of what the loop needs."""
    loop = native(SCRIPT)
    budget = loop.budget(fraction)
    run = with_firn(SCRIPT, "--relay", "--keep", "auto", budget=budget, dirs=[spill_dir],
                    host="64MiB")
    check_same(run, loop)
    check_budget(run, budget)
    assert least <= int(run.values("graphs")[0]) <= most, run.text


def beside_the_stash(native, layers):
    """The most memory in a step beside parameters, states and the layers' kept inputs: 4 bytes of
    width 64 for each of 4 * 32 words, each layer."""
    thin = ("--steps", 4, "--layers", layers, "--length", 32, "--batch", 4, "--width", 64)
    (found,) = native(SCRIPT, "--relay", *thin).values("beside")
    return int(found) - layers * 4 * 32 * 64 * 4


def test_memory_does_not_grow_with_depth(native):
    layer = 12 * 64 * 64 * 4
    least, middle, most = (beside_the_stash(native, layers) for layers in (4, 16, 64))
    assert abs(most - least) < layer and abs(middle - least) < layer, (least, middle, most)


@pytest.mark.long
def test_the_loop_does_not_fit_where_the_relay_does(native, paths, tmp_path):
    """Without Firn: what the relay needs in its later steps is too little for the loop."""
    loop, relay = native(SCRIPT), native(SCRIPT, "--relay")
    assert relay.peak() < loop.peak()
    run = run_native(paths, tmp_path, SCRIPT, memory=relay.budget(1.0))
    assert run.status == 1 and "CUDA out of memory" in run.text


WIDER = (*SMALL, "--steps", 4, "--width", 128)
HOST = (*WIDER, "--relay", "--where", "host")


@pytest.mark.parametrize("more", [(), pytest.param(("--bfloat16",), marks=pytest.mark.long)],
                         ids=str)
def test_updates_at_the_host(native, with_firn, spill_dir, more):
    """With 32 bits the bits of the loop, whose fused kernel is the host's here. No states are on
    the device: parameters alone. With Firn, at a half of what the loop needs, the bits are the
    same."""
    loop = native(SCRIPT, *WIDER, "--fused")
    host = native(SCRIPT, *HOST, *more)
    if not more:
        assert host.results() == loop.results()
        assert int(host.values("kept")[0]) < 0.4 * int(loop.values("kept")[0])
    budget = loop.budget(0.5)
    run = with_firn(SCRIPT, *HOST, *more, budget=budget, dirs=[spill_dir], host="64MiB")
    check_same(run, host)
    check_budget(run, budget)


@pytest.mark.long
def test_adversarial_updates_at_the_host(native, with_firn, spill_dir):
    arguments = (*SMALL, "--relay", "--where", "host")
    run = with_firn(SCRIPT, *arguments, budget="4GiB", dirs=[spill_dir], host="16MiB",
                    options=["--adversarial"])
    check_same(run, native(SCRIPT, *arguments))
    assert run.device()["spilled_bytes"] > 0 and run.device()["lost_blocks"] == 0
