"""Which operators' results may be made again: each one on the list is, with the bytes that it gave,
and no recipe stands that should not. The programs beside this file do it, each in one process."""

import json
import pathlib
import subprocess

import operator_calls_names
import pytest
import script_runs
from conftest import PYTHON

HERE = pathlib.Path(__file__).parent
SECONDS = 1200


@pytest.fixture(scope="session")
def in_front(firn_environment, libraries):
    """An environment in which Firn stands in front of the driver: that is not loaded yet."""
    return {**firn_environment, "FIRN_DEVICE": "software", "FIRN_GPU_MEMORY": str(1 << 30),
            "LD_PRELOAD": libraries["software/libcudart.so.13"],
            "PYTORCH_CUDA_ALLOC_CONF": "backend:firn"}


def run(environment, program, *arguments, **more):
    return subprocess.run([PYTHON, str(HERE / program), *map(str, arguments)], text=True,
                          env={**environment, **more}, capture_output=True, timeout=SECONDS,
                          stdin=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def operators(in_front, tmp_path_factory):
    """What operators.py found."""
    out = tmp_path_factory.mktemp("recipes") / "operators.json"
    done = run(in_front, "operators.py", "--samples", 2, "--out", out)
    assert out.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(out.read_text())


def test_every_operator_on_the_list_has_calls_and_no_other(operators):
    assert operators["without_calls"] == [] and operators["not_listed"] == []
    assert not set(operators["absent"]) & set(operators["operators"])
    assert len(operators["operators"]) > 100


def test_each_is_made_again_with_equal_bytes(operators):
    wrong = {name: about["wrong"] for name, about in operators["operators"].items()
             if about["wrong"]}
    assert wrong == {}


def test_each_was_made_again_in_its_types_and_layouts(operators):
    """An operator whose calls are all refused would pass for equal."""
    for name, about in operators["operators"].items():
        made = {dtype for dtype, count in about["types"].items() if count}
        assert made >= set(operator_calls_names.types_of(name)), (name, made)
        assert len(about["layouts"]) >= 3, (name, about["layouts"])


def test_samples_of_torch_s_own_list(operators):
    assert operators["op_db_wrong"] == []
    assert sum(operators["op_db"].values()) > 800 and len(operators["op_db"]) > 70


def test_results_are_written_in_place_where_they_can_be(operators):
    """By an out= overload; the others need a temporary of the result's size."""
    into = {name for name, about in operators["operators"].items() if about["out"]}
    assert {"aten::gelu", "aten::add.Tensor", "aten::cat", "aten::_softmax", "aten::mm"} <= into
    assert not {"aten::native_layer_norm", "aten::clone", "aten::convolution",
                "aten::native_batch_norm"} & into


@pytest.mark.parametrize("program, least", [("voids.py", 16), ("surroundings.py", 13)])
def test_when_recipes_stand_and_when_they_do_not(in_front, program, least):
    done = run(in_front, program)
    cases = [line for line in done.stdout.splitlines() if line.endswith(" ok")]
    assert done.returncode == 0 and len(cases) >= least, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.parametrize("case", ["a_graph_of_before_recipes_were_kept",
                                  "a_graph_with_work_outside_of_operators"])
def test_no_recipe_stands_beside_a_graph_that_may_write_anything(in_front, case):
    done = run(in_front, "voids.py", case)
    assert done.returncode == 0 and f"{case} ok" in done.stdout, done.stdout + done.stderr[-2000:]


def test_nothing_is_kept_where_launches_go_unseen(in_front, libraries):
    """The driver was opened before Firn could stand in front of it."""
    done = run(in_front, "surroundings.py", "functorch", LD_PRELOAD="%s:%s" % (
        libraries["software/libcudart.so.13"], libraries["software/libcuda.so.1"]))
    assert done.returncode == 1 and "Firn is not in front of the driver" in done.stderr


SCRIPTS = {
    "gpt_adamw.py": ("--layers", 2, "--width", 64, "--batch", 2, "--length", 64, "--steps", 3),
    "convnet_bn_sgd_checkpoint.py": ("--steps", 2, "--batch", 4, "--size", 16, "--blocks", 2),
    "autocast_accumulation.py": ("--steps", 2, "--batch", 4, "--length", 32, "--layers", 2),
    "side_streams.py": ("--steps", 3, "--layers", 3, "--batch", 64),
    "lstm.py": ("--steps", 2, "--batch", 16, "--length", 4, "--width", 32),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_all_is_made_again_before_each_use(native, with_firn, script):
    """Each piece of memory whose recipe stands is spoiled and made again before an operator uses
    it: one that should not have stood would change the job's bits."""
    arguments = SCRIPTS[script]
    done = with_firn(str(HERE / "always.py"), script_runs.SCRIPTS / script, *arguments,
                     budget="2GiB")
    script_runs.check_same(done, native(script, *arguments))
    (last,) = [line for line in done.text.splitlines() if line.startswith("# {")]
    told = json.loads(last[2:])
    assert sum(told["made_again"].values()) > 20, told
