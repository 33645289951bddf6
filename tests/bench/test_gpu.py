"""bench/gpu, the suite for a machine with a GPU: its dry run on the software GPU; what it says where
something is missing; that it can be carried to a machine without network and built there."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPU = ROOT / "bench/gpu"
BUILD = ROOT / os.environ.get("FIRN_TEST_BUILD", "build")
# What a dry run leaves out, and nothing else: what no software GPU can do.
SKIPPED = {"preload-runtime": "need a GPU", "preload-sanitizer": "needs a GPU",
           "torch-compile": "need a GPU", "torch-compile-graphs": "need a GPU",
           "torch-flash": "no flash kernels", "torch-nccl": "needs a GPU"}
WITHOUT_NVCC = {"preload-asked": "no nvcc", "preload-cublas": "no nvcc"}


def run(*words, environment=None, **options):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("FIRN_", "PYTORCH_")) and name != "LD_PRELOAD"}
    return subprocess.run([str(word) for word in words], env={**kept, **(environment or {})},
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)


def suite(out, *words, **options):
    done = run("bash", GPU / "run.sh", "--device", "software", "--build", BUILD, "--out", out, *words,
               timeout=900, **options)
    path = pathlib.Path(out) / "results.json"
    return done, json.loads(path.read_text()) if path.exists() else None


def rows(results):
    return {row["name"]: row for row in results["steps"]}


@pytest.fixture(scope="session", autouse=True)
def built():
    if not (BUILD / "allocator/command/firn").exists():
        pytest.skip(f"{BUILD} is not built")
    if (BUILD / "build.ninja").exists():  # not among what is built by default
        ninja = shutil.which("ninja", path=f"{ROOT}/.venv/bin:{os.environ['PATH']}")
        subprocess.run([ninja, "-C", str(BUILD), "bench/overhead/libcalls.so"], check=True,
                       stdout=subprocess.DEVNULL)


def test_dry_run(tmp_path):
    done, results = suite(tmp_path)
    assert results, done.stderr
    told = rows(results)
    bad = {name: (row["status"], row["why"], row.get("output", "")[-2000:])
           for name, row in told.items() if row["status"] in ("failed", "cut")}
    assert not bad, bad
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = {name: row["why"] for name, row in told.items() if row["status"] == "skipped"}
    for name, why in skipped.items():
        assert {**SKIPPED, **WITHOUT_NVCC}[name] in why
    assert set(skipped) >= set(SKIPPED)
    assert set(told) - set(skipped) - set(WITHOUT_NVCC) == {
        name for name, row in told.items() if row["status"] == "passed"} - set(WITHOUT_NVCC)
    # Steps that measured and checked, not only ended.
    for name in ("conformance", "beliefs", "cycles", "torch-bits", "torch-large", "torch-files",
                 "torch-graphs", "torch-cudnn", "preload-pytorch", "costs-spills", "costs-calls"):
        assert told[name]["checks"] and all(check["ok"] for check in told[name]["checks"]), name
    for name in ("cycles", "torch-bits", "torch-large", "costs-driver", "costs-launches"):
        assert told[name]["figures"], name
    half = told["torch-bits"]["figures"]["half"]
    assert half["spilled_bytes"] > 0 and half["budget_bytes"] < half["peak_bytes"]
    machine = results["machine"]
    assert machine["torch"]["torch"] and machine["glibc"] and machine["compiler"]


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
    assert names[:5] == ["machine", "build", "conformance", "beliefs", "cycles"]
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


def test_a_step_that_takes_too_long_is_cut_and_the_next_one_runs(tmp_path):
    done, results = suite(tmp_path, "--minutes", "0.02", "--only", "conformance", "--only", "beliefs")
    told = rows(results)
    assert {row["status"] for row in told.values()} <= {"passed", "cut", "skipped"}
    assert told["beliefs"]["status"] == "skipped" and "--minutes" in told["beliefs"]["why"]


def test_what_fails_is_told(tmp_path):
    """A driver that is none: the suite goes on, says what failed, and ends with 1."""
    other = tmp_path / "build"
    shutil.copytree(BUILD / "allocator/command", other / "allocator/command",
                    ignore=shutil.ignore_patterns("*.p"))
    sys.path.insert(0, str(GPU))
    import building
    for name in (*building.CORE, *building.OF_TORCH, *building.OF_TORCH_SOFTWARE, *building.FILES):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        if not (other / name).exists():
            shutil.copy(BUILD / name, other / name)
    (other / "tests/gpu/program_cycles").write_text("#!/bin/sh\necho 'visits 3 wrong 1'; exit 4\n")
    done, results = suite(tmp_path / "out", "--build", other, "--only", "cycles", "--only",
                          "costs-driver")
    told = rows(results)
    assert told["cycles"]["status"] == "failed" and "status 4" in told["cycles"]["why"]
    assert "wrong 1" in told["cycles"]["output"]
    assert told["costs-driver"]["status"] == "passed"
    assert done.returncode == 1
