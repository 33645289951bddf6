"""bench/gpu, the suite for a machine with a GPU: its dry run on the software GPU; what it says where
something is missing; that it can be carried to a machine without network and built there."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPU = ROOT / "bench/gpu"
BUILD = ROOT / os.environ.get("FIRN_TEST_BUILD", "build")
# A dry run leaves these out, and nothing else: no software GPU can do them, or other tests do.
SKIPPED = {"preload-runtime": "need a GPU", "preload-sanitizer": "needs a GPU",
           "torch-libraries": "on the software GPU", "frameworks": "need a GPU",
           "torch-compile": "need a GPU", "torch-compile-graphs": "need a GPU",
           "torch-flash": "no flash kernels", "torch-nccl": "needs a GPU",
           "torch-triton": "need a GPU"}
# Steps that are run without --long: one of each kind. (All of them take 300 s, and what most of
# them run is run by tests of its own, too.)
SOME = ("machine", "build", "conformance", "beliefs", "cycles", "asked", "torch-bits",
        "preload-pytorch", "costs-calls")
WHOLE = os.environ.get("FIRN_TEST_LENGTH") == "long"
WITHOUT_NVCC = {"preload-asked": "no nvcc", "preload-cublas": "no nvcc"}


def run(*words, environment=None, **options):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("FIRN_", "PYTORCH_")) and name != "LD_PRELOAD"}
    return subprocess.run([str(word) for word in words], env={**kept, **(environment or {})},
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)


def suite(out, *words, **options):
    done = run("bash", GPU / "run.sh", "--device", "software", "--build", BUILD, "--out", out, *words,
               timeout=3000, **options)
    path = pathlib.Path(out) / "results.json"
    return done, json.loads(path.read_text()) if path.exists() else None


def rows(results):
    return {row["name"]: row for row in results["steps"]}


@pytest.fixture(scope="session", autouse=True)
def built():
    if not (BUILD / "allocator/command/firn").exists():
        pytest.skip(f"{BUILD} is not built")


def test_dry_run(tmp_path):
    chosen = [] if WHOLE else [word for name in SOME for word in ("--only", name)]
    done, results = suite(tmp_path, "--minutes", 40, *chosen)
    assert results, done.stderr
    told = rows(results)
    bad = {name: (row["status"], row["why"], row.get("output", "")[-2000:],
                  [check for check in row["checks"] if not check["ok"]])
           for name, row in told.items() if row["status"] not in ("passed", "skipped")}
    assert not bad and done.returncode == 0, (bad, done.stdout, done.stderr)
    skipped = {name: row["why"] for name, row in told.items() if row["status"] == "skipped"}
    for name, why in skipped.items():
        assert {**SKIPPED, **WITHOUT_NVCC}[name] in why
    if WHOLE:
        assert set(skipped) >= set(SKIPPED) and len(told) > 20
    # Steps that measured and checked, not only ended.
    checked = {"conformance", "beliefs", "cycles", "torch-bits", "torch-large", "torch-files",
               "torch-graphs", "torch-cudnn", "torch-recipes", "preload-pytorch", "costs-spills",
               "costs-calls", "asked", "asked-lost", "torch-adversarial", "torch-by-name",
               "torch-side-stream", "torch-graph-across", "torch-assert", "torch-verify",
               "costs-mapping"}
    for name in checked if WHOLE else checked & set(SOME):
        assert told[name]["checks"] and all(check["ok"] for check in told[name]["checks"]), name
    measured = {"cycles", "torch-bits", "torch-large", "costs-driver", "costs-launches"}
    for name in measured if WHOLE else measured & set(SOME):
        assert told[name]["figures"], name
    for case in ("bits", "by-name", "side-stream", "cudnn") if WHOLE else ():
        assert told["torch-adversarial"]["figures"][f"{case}, adversarial"]["spilled_bytes"] > 0
    half = told["torch-bits"]["figures"]["half"]
    assert half["spilled_bytes"] > 0 and half["budget_bytes"] < half["peak_bytes"]
    assert str(ROOT) not in (tmp_path / "results.json").read_text()
    machine = results["machine"]
    assert machine["torch"]["torch"] and machine["glibc"] and machine["compiler"]


@pytest.mark.quick
def test_what_is_held_is_called_so():
    held = re.search(r'^HELD = ("[^"]+")', (GPU / "pins.py").read_text(), re.M)[1]
    assert f"held = {held};" in (ROOT / "allocator/engine/no_room.cpp").read_text()


@pytest.mark.quick
def test_without_a_gpu(tmp_path):
    if run(sys.executable, "-c", "import ctypes; ctypes.CDLL('libcuda.so.1')").returncode == 0:
        pytest.skip("there is a driver here")
    done = run("bash", GPU / "run.sh", "--out", tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("run.sh: no GPU here (") and "--device software" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "results.json").exists()


@pytest.mark.quick
@pytest.mark.parametrize("words, says", [
    (("--only", "nothing"), "nothing: no step's name begins so"),
    (("--minutes", "0"), "--minutes 0"), (("--device", "hardware"), "hardware"),
    (("--model", "9t"), "--model 9t"), (("--build", "/nowhere"), "--build /nowhere"),
    (("--gpu-memory", "much"), "'much' is not a size")])
def test_wrong_words(words, says):
    done = run("bash", GPU / "run.sh", *words)
    assert done.returncode == 2 and says in done.stderr.splitlines()[-1], done.stderr


@pytest.mark.quick
def test_list_and_help():
    listed = run("bash", GPU / "run.sh", "--list")
    assert listed.returncode == 0
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert names[:4] == ["machine", "asked", "asked-lost", "build"]
    assert len(names) == len(set(names)) > 15
    helped = run("bash", GPU / "run.sh", "--help")
    assert helped.returncode == 0 and "--minutes" in helped.stdout


def test_a_run_that_is_cut_off_still_tells(tmp_path):
    words = ["bash", str(GPU / "run.sh"), "--device", "software", "--build", str(BUILD), "--out",
             str(tmp_path), "--only", "conformance", "--only", "torch-large"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path = tmp_path / "results.json"

    def status(name):
        try:
            return rows(json.loads(path.read_text()))[name]["status"]
        except (OSError, KeyError):
            return None
    while status("torch-large") != "running":
        assert process.poll() is None
        time.sleep(.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert status("conformance") == "passed" and status("torch-large") == "running"


@pytest.fixture
def with_file(tmp_path):
    """with_file(NAME, TEXT): a build in which a file is that."""
    def make(name, text):
        sys.path.insert(0, str(GPU))
        import building
        other = tmp_path / "build"
        for each in (*building.CORE, *building.OF_TORCH, *building.OF_TORCH_SOFTWARE,
                     *building.FILES):
            (other / each).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(BUILD / each, other / each)
        (other / name).write_text(text)
        return other
    return make


@pytest.fixture
def with_cycles(with_file):
    """with_cycles(SCRIPT): a build whose program of cycles is that."""
    return lambda script: with_file("tests/gpu/program_cycles", f"#!/bin/sh\n{script}\n")


def test_another_torch(with_file, tmp_path):
    other = with_file("pytorch_plugin/_build.py", 'torch_version = "2.99.0"\n')
    done, results = suite(tmp_path / "out", "--build", other, "--only", "conformance", "--only",
                          "torch-bits", "--only", "preload-pytorch")
    told = rows(results)
    for name in ("torch-bits", "preload-pytorch"):
        assert told[name]["status"] == "skipped"
        assert told[name]["why"].startswith("built for torch 2.99, found 2.")
    assert told["conformance"]["status"] == "passed" and done.returncode == 0


def test_without_torch(tmp_path):
    bare = os.path.realpath(sys.executable)  # without the virtual environment
    if run(bare, "-c", "import torch").returncode == 0:
        pytest.skip(f"{bare} has torch")
    done, results = suite(tmp_path / "out", "--only", "conformance", "--only", "torch-bits",
                          environment={"FIRN_PYTHON": bare})
    told = rows(results)
    assert told["torch-bits"]["status"] == "skipped" and "no torch" in told["torch-bits"]["why"]
    assert told["conformance"]["status"] == "passed" and done.returncode == 0


def test_a_step_that_takes_too_long_is_cut_and_the_next_one_runs(with_cycles, tmp_path):
    done, results = suite(tmp_path / "out", "--build", with_cycles("echo so far; sleep 1000"),
                          "--limits", .1, "--only", "cycles", "--only", "conformance")
    told = rows(results)
    assert told["cycles"]["status"] == "cut" and "cut off after" in told["cycles"]["why"]
    assert "so far" in told["cycles"]["output"]
    assert told["conformance"]["status"] == "passed" and done.returncode == 1


def test_no_time_is_left(tmp_path):
    done, results = suite(tmp_path, "--minutes", .01, "--only", "conformance")
    told = rows(results)["conformance"]
    assert told["status"] == "skipped" and "--minutes" in told["why"] and done.returncode == 0


def test_what_fails_is_told(with_cycles, tmp_path):
    """The suite goes on, says what failed, and ends with 1."""
    done, results = suite(tmp_path / "out", "--build",
                          with_cycles("echo visits 3 wrong 1; exit 4"), "--only", "cycles",
                          "--only", "costs-driver")
    told = rows(results)
    assert told["cycles"]["status"] == "failed"
    assert "status 4: visits 3 wrong 1" in told["cycles"]["why"]
    assert told["costs-driver"]["status"] == "passed" and done.returncode == 1


def machine_like(**other):
    """What machine.describe tells of one where nothing is amiss, and what is."""
    return {"limits": {"memlock": "unlimited"}, "disk_free_bytes": 1 << 40, "nvcc": ["release 13.0"],
            "gpus": [{"name": "a GPU", "mig.mode.current": "Disabled"}],
            "driver": {"version": 13000, "total_bytes": 140 << 30, "free_bytes": 139 << 30}, **other}


@pytest.mark.quick
@pytest.mark.parametrize("other, says", [
    ({}, None),
    ({"limits": {"memlock": 8 << 20}}, "memlock is 8388608 bytes"),
    ({"disk_free_bytes": 1 << 30}, "1024 MiB of disk are free"),
    ({"gpus": []}, "nvidia-smi tells nothing"),
    ({"gpus": [{"mig.mode.current": "Enabled"}]}, "MIG"),
    ({"gpus": [{}, {}]}, "2 GPUs"),
    ({"driver": {"version": 13000, "total_bytes": 140 << 30, "free_bytes": 100 << 30}},
     "40960 MiB of the GPU are in use by others"),
    ({"driver": {"version": 12080, "total_bytes": 1, "free_bytes": 1}}, "a driver before CUDA 13"),
    ({"driver": {"version": 12010, "total_bytes": 1, "free_bytes": 1}, "nvcc": None},
     "a driver before 12.2"),
])
def test_what_has_a_bearing_is_noted(other, says):
    words = json.dumps(machine_like(**other))
    done = run(sys.executable, "-c", "import json, sys; sys.path.insert(0, sys.argv[1]); import machine;"
               "print(json.dumps(machine.notes_of(json.loads(sys.argv[2]), False)))", GPU, words)
    notes = json.loads(done.stdout)
    assert [says in note for note in notes] == [True] if says else notes == [], done.stderr


@pytest.mark.quick
def test_the_table_of_what_was_seen(tmp_path):
    def table():
        done = run(sys.executable, GPU / "table.py", tmp_path)
        assert done.returncode == 0, done.stderr
        return {line.split("`")[1]: line for line in done.stdout.splitlines()[2:]}

    assert all(line.endswith("| not yet seen on a GPU |") for line in table().values())
    step = {"name": "cycles", "status": "passed", "why": "", "checks": [{"ok": True}]}
    whole = {"suite": "bench/gpu", "device": "software", "begun": "2026-01-02T03:04:05+00:00",
             "machine": {"gpus": [{"name": "NVIDIA X"}]}, "steps": [step]}
    (tmp_path / "dry.json").write_text(json.dumps(whole))
    assert "not yet seen on a GPU" in table()["cycles"]
    (tmp_path / "real.json").write_text(json.dumps({**whole, "device": "auto"}))
    assert table()["cycles"].endswith("| passed, 1 of 1 checks; NVIDIA X, 2026-01-02 |")
    assert "not yet seen on a GPU" in table()["beliefs"]
