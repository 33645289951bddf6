"""Training steps whose operators run in the order of `firn order`: the same bits, and the peak that
was planned."""

import json
import subprocess

import pytest

from conftest import PYTHON, ROOT

CASES = ROOT / "tests/torch/plugin/compiled_cases.py"


@pytest.fixture(scope="module")
def cases(firn_environment, tmp_path_factory):
    """All of them from one process: importing torch's compiler takes longest."""
    done = subprocess.run([PYTHON, str(CASES)], cwd=tmp_path_factory.mktemp("cases"),
                          env=firn_environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_a_step_as_one_graph(cases, name):
    found = cases[name + " step"]
    assert found["equal"]
    assert found["losses"][0] != found["losses"][1]
    assert found["peak"] < 0.95 * found["peak_program_order"]
    assert found["measured"] == pytest.approx(found["peak"], rel=0.02)
    assert found["program_order_measured"] == pytest.approx(found["peak_program_order"], rel=0.02)


@pytest.mark.parametrize("name", ["gpt", "resnet"])
def test_the_backend_of_torch_compile(cases, name):
    found = cases[name + " backend"]
    assert found["equal"]
    forward, backward = found["graphs"]
    assert forward["peak"] <= forward["peak_program_order"]
    assert backward["peak"] <= backward["peak_program_order"]


def test_random_numbers_are_drawn_in_the_programs_order(cases):
    assert cases["draws"]["equal"]
