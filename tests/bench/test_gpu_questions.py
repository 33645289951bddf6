"""What bench/gpu asks a driver: each question by itself, so that one that ends its process, or
hangs, loses nothing but its answer; every entry that Firn calls; what a wrong answer does to the
step."""

import json
import pathlib
import re
import subprocess
import sys
import types

import pytest

from test_gpu import BUILD, GPU, ROOT, built, rows, run, suite  # noqa: F401

sys.path.insert(0, str(GPU))
import outside_steps  # noqa: E402
import question_steps  # noqa: E402
import torch_steps  # noqa: E402
from results import Results  # noqa: E402

SOFTWARE = BUILD / "backing/gpu/software/libcuda.so.1"


@pytest.fixture
def step(tmp_path):
    step = Results(tmp_path / "results", {}, 10).add("a step", "for a test", 60)
    step.ends = step.results.ends
    return step


@pytest.fixture
def asked_of(tmp_path, step):
    """asked_of(SCRIPT): a suite whose ask.py is that."""
    def make(script):
        folder = tmp_path / "root/bench/gpu/ask"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ask.py").write_text(
            "import json, os, signal, sys, time\n"
            "out = open(sys.argv[sys.argv.index('--out') + 1], 'a')\n"
            "words = sys.argv[1:sys.argv.index('--out')]\n"
            "def line(**what): print(json.dumps(what), file=out, flush=True)\n" + script)
        return types.SimpleNamespace(root=tmp_path / "root", work=tmp_path, python=sys.executable,
                                     software=False, environment=dict)
    return make


def answers_of(tmp_path, *words):
    out = tmp_path / "answers.json"
    done = run(sys.executable, GPU / "ask/ask.py", *words, "--out", out, "--library", SOFTWARE)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines[-1] == {"done": True}
    return {line["name"]: line["value"] for line in lines if "name" in line}


@pytest.mark.quick
def test_a_question_that_ends_its_process_loses_only_that_answer(asked_of, step):
    at = asked_of("line(about='first'); line(name='first', value=3)\n"
                  "line(about='cuMemCreate'); os.kill(os.getpid(), signal.SIGSEGV)\n")
    found = question_steps.ask(at, step, "host-node")
    assert found["answers"] == {"first": 3}
    assert (found["ended"], found["about"]) == ("by signal 11", "cuMemCreate")
    assert not question_steps.keep(step, "host-node", found)
    assert [check["ok"] for check in step.row["checks"]] == [False]
    assert "by signal 11, about cuMemCreate" in step.row["checks"][0]["detail"]


@pytest.mark.quick
def test_a_question_that_hangs_is_cut(asked_of, step):
    at = asked_of("line(name='first', value=3); line(about='cuCtxSynchronize'); time.sleep(100)\n")
    found = question_steps.ask(at, step, "sticky", "stores", limit_s=2)
    assert found["answers"] == {"first": 3} and found["about"] == "cuCtxSynchronize"
    assert found["ended"] == "cut off after 2 s"


@pytest.mark.quick
def test_entries_behind_one_that_ends_the_process_are_asked_nevertheless(asked_of, step):
    at = asked_of("""
for entry in ("cuMemUnmap", "cuMemRelease"):
    if entry in words[-1]: continue
    line(about=entry)
    if entry == "cuMemUnmap": os.abort()
    line(name=entry, value={"answer": "700 CUDA_ERROR_ILLEGAL_ADDRESS", "us": 1.0})
line(done=True)
""")
    found, answers, ends = question_steps.after_failure(at, step, "stores")
    assert answers["cuMemRelease"]["answer"].startswith("700 ")
    assert answers["cuMemUnmap"]["answer"] == "the process ended by signal 6"
    assert ends == [["cuMemUnmap", "by signal 6"]] and "ended" not in found


@pytest.mark.quick
def test_a_hang_at_exit_is_told_as_such(asked_of, step):
    at = asked_of("line(about='last'); line(name='last', value=1); line(done=True)\n"
                  "time.sleep(100)\n")
    found = question_steps.ask(at, step, "sticky", "stores", limit_s=2)
    assert found["about"] == "its end, after the last answer" and found["answers"] == {"last": 1}


@pytest.mark.quick
def test_every_entry_that_firn_calls_is_asked(tmp_path):
    table = (ROOT / "include/firn/driver.h").read_text()
    entries = set(re.findall(r"^  X\(\w+, (\w+),", table, re.M))
    assert len(entries) > 40
    answers = answers_of(tmp_path, "sticky", "none")
    assert entries <= set(answers)
    assert {told["answer"] for told in answers.values()} == {"0 CUDA_SUCCESS"}


@pytest.mark.quick
def test_what_entries_answer_once_a_context_is_lost(tmp_path):
    answers = answers_of(tmp_path, "sticky", "asserts")
    assert answers, "this software GPU loses no context"
    assert answers["cuCtxSynchronize"]["answer"] == "710 CUDA_ERROR_ASSERT"
    assert answers["cuGetErrorName"]["answer"] == "0 CUDA_SUCCESS"
    assert all(told["us"] >= 0 for told in answers.values())


@pytest.mark.quick
def test_another_address_than_dlsyms_is_found(tmp_path):
    code = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
import cu, entries
class Other(cu.Gpu):
    def call(self, name, *arguments):
        result = super().call(name, *arguments)
        if name == "cuGetProcAddress_v2" and arguments[0].value == b"cuMemFree":
            arguments[1]._obj.value = (arguments[1]._obj.value or -4) + 4
        return result
entries.identity(Other(sys.argv[2], cu.Answers(sys.argv[3])))
"""
    out = tmp_path / "answers"
    done = run(sys.executable, "-c", code, GPU / "ask", SOFTWARE, out)
    assert done.returncode == 0, done.stderr
    told = {line["name"]: line["value"] for line in map(json.loads, out.read_text().splitlines())
            if "name" in line}
    others = told["another address than dlsym's"]
    assert others and {base for base, *_ in others} == {"cuMemFree"}
    assert others[0][3].startswith("cuMemFree_v2+0x4 of libcuda.so.1")


@pytest.mark.quick
@pytest.mark.parametrize("name, answers", [
    ("granules", {"device, none, least": 4 << 20, "host node, none, least": 4096}),
    ("attributes", {"named": {"102 VIRTUAL_MEMORY": 0, "41 UNIFIED_ADDRESSING": 1}}),
    ("handle-types", {"none": "999 CUDA_ERROR_UNKNOWN", "posix_fd": "1 CUDA_ERROR_INVALID_VALUE"}),
    ("buffer-ids", {"cuMemAlloc: address, id": [["0x10", 1], ["0x10", 1]]}),
    ("identity", {"another address than dlsym's": [["cuMemFree", 2000, "default", "?"]],
                  "an entry that Firn lets past": []}),
    ("shared-frame", {"parts of 64 KiB: wrong words": 3}),
    ("host-node", {"cuMemCreate": {"answer": "0 CUDA_SUCCESS"}, "bytes": False}),
    ("widths", {"cuMemAlloc": {"8 IS_MANAGED": {"answer": "0 CUDA_SUCCESS", "bytes": 1}}}),
])
def test_what_is_otherwise_than_firn_takes_it_fails_the_step(step, name, answers):
    question_steps.CHECKS[name](step, answers)
    assert not all(check["ok"] for check in step.row["checks"])


def test_questions_on_the_software_gpu(tmp_path):
    done, results = suite(tmp_path, "--only", "asked", "--only", "costs-mapping")
    told = rows(results)
    assert done.returncode == 0, told
    assert {row["status"] for row in told.values()} == {"passed"}
    figures = told["asked"]["figures"]
    assert set(question_steps.CHECKS) <= set(figures)
    assert figures["host-node"]["cuMemCreate"]["answer"] == "0 CUDA_SUCCESS"
    assert figures["attributes"]["named"]["102 VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"] == 1
    assert figures["widths"]["mapped"]["3 DEVICE_POINTER"]["bytes"] == 8
    lost = told["asked-lost"]["figures"]
    for kind in question_steps.KINDS:
        assert kind in lost or kind in str(told["asked-lost"]["left_out"])
    loads = told["costs-mapping"]["figures"]["loads"]
    assert set(loads) == {"idle", "copies both ways", "kernels that fill the GPU",
                          "copies and kernels"}
    assert told["costs-mapping"]["figures"]["2 processes"]["2MiB"]["unmap"][0] > 0
    assert str(ROOT) not in (tmp_path / "results.json").read_text()


@pytest.mark.quick
def test_the_questions_kernels_compile(tmp_path):
    found = [*pathlib.Path(sys.prefix).glob("lib/python*/site-packages/torch/bin/ptxas"),
             *pathlib.Path("/usr/local/cuda/bin").glob("ptxas")]
    if not found:
        pytest.skip("no ptxas here")
    for generation in ("75", "90", "100"):
        done = subprocess.run([str(found[0]), f"-arch=sm_{generation}", "-o", str(tmp_path / "out"),
                               str(GPU / "ask/kernels.ptx")], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.quick
def test_a_job_that_works_because_all_of_it_stays_is_no_success(step):
    runs = torch_steps.Runs(types.SimpleNamespace(root=ROOT), step, "a", [])
    runs.results["firn"] = {"peak_bytes": 1000, "pinned": {
        "segments of small blocks (below 1 MiB)": 900, "an address": 99}}
    runs.free_to_leave("firn")
    runs.results["firn"]["pinned"]["an address"] = 101
    runs.free_to_leave("firn")
    assert [check["ok"] for check in step.row["checks"]] == [True, False]


@pytest.mark.quick
@pytest.mark.parametrize("device, well", [
    ({"verified_bytes": 5, "unseen_writes": 0}, [True, True]),
    ({"verified_bytes": 5, "unseen_writes": 2}, [True, False]),
    ({"verified_bytes": 0, "unseen_writes": 0}, [False, True]), ({}, [])])
def test_copies_that_differ_fail_the_step(step, device, well):
    outside_steps.compared(step, device)
    assert [check["ok"] for check in step.row["checks"]] == well
    assert ("left_out" in step.row) == (not well)


@pytest.mark.quick
def test_on_a_gpu_the_questions_come_before_the_build():
    import suite as the_suite
    names = [name for name, *_ in the_suite.STEPS]
    assert names.index("asked-lost") < names.index("build")
    for name, _, most_s, _ in the_suite.STEPS:
        assert 0 < most_s <= 300, name
    chosen = the_suite.in_order([each for each in the_suite.STEPS], software=True)
    assert [name for name, *_ in chosen][:3] == ["machine", "build", "asked"]
