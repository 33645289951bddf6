"""bench/jobs: a relay over micro-batches computes what a loop that accumulates gradients does, in
another order; and what record.py's ways have in common."""

import json
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def cases():
    done = subprocess.run([sys.executable, str(HERE / "relay_cases.py")], capture_output=True,
                          text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "gpt"])
def test_gradients_are_those_of_the_loop(cases, name):
    found = cases["gradients"][name]
    assert found["least"] > 0                  # every gradient is something
    assert found["all"] < 1e-15
    if name != "t5":                           # its layers share a bias, summed in another order
        assert found["layers"] == 0


def test_layers_run_over_all_micro_batches_and_are_updated_at_once(cases):
    ran = [(what, layer) for what, layer in cases["order"]["ran"] if layer is not None]
    wanted = [("run", layer) for layer in (0, 1, 2) for _ in range(3)]
    for layer in (2, 1, 0):
        wanted += [("run", layer)] * 3 + [("update", layer)] * 9
    assert ran == wanted
    assert cases["order"]["gradients_left"] == 0


def test_an_error_in_a_micro_batch_ends_the_step(cases):
    assert "in the second micro-batch" in cases["failing"]


@pytest.mark.parametrize("name", ["one", "three", "bert", "t5", "llama-shards"])
def test_a_relay_computes_as_much_as_recomputation(cases, name):
    relay, again = cases[name]["relay"], cases[name]["recompute"]
    assert relay["flops"] == again["flops"] > 0
    assert relay["persistent_bytes"] == again["persistent_bytes"]
    assert relay["peak_bytes"] <= again["peak_bytes"]
    # Gradients are summed in place where they were summed into new memory; T5's first one of the
    # shared bias is copied.
    added = {"add", "add_", "copy_"} if name != "one" else set()
    for kernel in {*relay["names"], *again["names"]} - added:
        assert relay["names"].get(kernel) == again["names"].get(kernel), kernel
    assert abs(relay["kernels"] - again["kernels"]) <= (4 if name == "t5" else 0)


def test_an_eager_step_is_the_plain_one_in_another_order(cases):
    for parts in ("one", "three"):
        eager, plain = cases[parts]["eager"], cases[parts]["plain"]
        assert eager["names"] == plain["names"] and eager["flops"] == plain["flops"]
        assert eager["peak_bytes"] <= plain["peak_bytes"]


def test_micro_batches_take_less_memory_for_the_same_flops(cases):
    for way, one in cases["one"].items():
        three = cases["three"][way]
        assert three["flops"] == one["flops"], way
        assert three["peak_bytes"] < one["peak_bytes"], way
        assert three["kernels"] > 2 * one["kernels"], way


def test_a_batch_without_such_parts_is_refused():
    script = HERE.parents[1] / "bench/jobs/record.py"
    done = subprocess.run([sys.executable, str(script), "gpt-8192", "/nowhere/x",
                           "--micro-batches", "5"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "a batch of 16 has no 5 equal parts" in done.stderr
