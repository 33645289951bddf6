"""What an hour of everything consists of. A piece runs from a seed and answers with a Tried."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / each) for each in ("tests", "pytorch_plugin/runs", "tests/torch/programs")]

import figures  # noqa: E402
import jobs  # noqa: E402
import script_runs  # noqa: E402

BUILD = pathlib.Path(os.environ.get("FIRN_TEST_BUILD") or ROOT / "build").resolve()
GPU = BUILD / "backing/gpu/software/libcuda.so.1"


@dataclasses.dataclass
class Tried:
    runs: int = 1
    operations: int = 0
    faults: int = 0     # that are known to have been injected
    right: int = 0      # all of it, nothing was refused
    refused: int = 0    # some of it, by an error that says why; the rest right
    lost: int = 0       # blocks, said to be lost
    wrong: int = 0
    leaks: int = 0
    failed: int = 0     # anything else that must not be
    skipped: int = 0
    words: str = ""     # of a failure: what it said, and the command that replays it

    def add(self, other):
        for field in dataclasses.fields(self):
            if field.name != "words":
                setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def bad(self):
        return self.wrong + self.leaks + self.failed


def skipped(why):
    return Tried(runs=0, skipped=1, words=why)


class Programs:
    """A random PyTorch program of one kind (tests/torch/programs)."""

    def __init__(self, kind, weight):
        self.name, self.kind, self.weight = f"programs {kind}", kind, weight
        # (The software GPU fails calls at a rate, and keeps no count.)
        self.uncounted = ("faults",) if kind == "driver" else ()

    def run(self, seed, seconds):
        paths = script_runs.Paths.find()
        if isinstance(paths, str):
            return skipped(paths)
        job, outcome = jobs.run_seed(paths, seed, self.kind)
        counts = outcome.counts
        tried = Tried(operations=counts.get("operators", 0) + counts.get("compared", 0))
        for line in re.findall(r"^bad_disk (.*)$", outcome.text, re.M):
            tried.faults += sum(map(int, line.split()))
        tried.lost = outcome.of_devices("lost_blocks")
        tried.right = outcome.name == "right"
        tried.refused = outcome.name in ("refused", "lost")
        if self.kind == "killed":
            tried.faults = tried.right = int(not outcome.failed())
        tried.wrong = outcome.name == "wrong"
        tried.leaks = outcome.name == "leaked"
        tried.failed = outcome.name == "failed"
        if outcome.failed():
            tried.words = f"{outcome.text[-3000:]}\n{job.words()}\nreplay: {jobs.replay(job)}"
        return tried


def run(command, seconds, **environment):
    """(status, text); the status is None where it ran for too long."""
    try:
        done = subprocess.run(command, env={**os.environ, "FIRN_TEST_GPU": str(GPU), **environment},
                              cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace",
                              timeout=seconds)
    except subprocess.TimeoutExpired as error:
        said = error.stdout or b""
        return None, (said if isinstance(said, str) else said.decode(errors="replace"))
    return done.returncode, done.stdout


class Tags:
    """Seeds of the engine's simulation with tags (tests/simulation)."""

    name, weight, seeds, uncounted = "simulation", 8, 40, ()

    def run(self, seed, seconds):
        program = BUILD / "tests/simulation/tags_test"
        if not program.exists():
            return skipped(f"{program} is not built")
        status, text = run([str(program)], 1800, FIRN_SEEDS=str(self.seeds), FIRN_JOBS="1",
                           FIRN_FIRST_SEED=str(seed % 10**12), FIRN_OPERATIONS="20000")
        found = figures.tags(text)
        if not found:
            return Tried(failed=1, words=f"{text[-3000:]}\nstatus {status}, from seed {seed}")
        return Tried(found.tried, found.operations, found.faults, found.survived, 0, found.lost,
                     found.wrong, failed=int(status != 0 and not found.wrong),
                     words=text[-6000:] if status != 0 else "")


class Seeds:
    """A program that takes one seed, so many seeds in processes of their own."""

    uncounted = ("operations", "faults")

    def __init__(self, name, program, weight, variable=None):
        self.name, self.program, self.weight = name, BUILD / program, weight
        self.variable = variable  # that names the seed; else it is an argument

    def run(self, seed, seconds):
        if not self.program.exists():
            return skipped(f"{self.program} is not built")
        tried, end = Tried(runs=0), time.monotonic() + min(seconds, 25)
        for number in range(seed, seed + 1000):
            if time.monotonic() > end and tried.runs:
                break
            words = [str(self.program)] if self.variable else [str(self.program), str(number)]
            named = {self.variable: str(number)} if self.variable else {}
            status, text = run(words, 300, **named)
            tried.runs += 1
            tried.right += status == 0
            if status != 0:
                tried.failed += 1
                setting = f"{self.variable}={number} " if self.variable else ""
                tried.words += (f"{text[-3000:]}\nstatus {status}\nreplay: FIRN_TEST_GPU={GPU} "
                                f"{setting}{' '.join(words)}\n")
        return tried


class Whole:
    """Something that has no seeds, once. `read` takes its figures (tests/figures.py) from what it
    prints; words without any are a failure."""

    weight = 0

    def __init__(self, name, command, needs, minutes, read, uncounted=("operations",)):
        self.name, self.command, self.needs = name, command, ROOT / needs
        self.minutes, self.read, self.uncounted = minutes, read, uncounted

    def run(self, seed, seconds):
        if not self.needs.exists():
            return skipped(f"{self.needs.relative_to(ROOT)} is not here")
        status, text = run(self.command, 60 * self.minutes)
        return skipped(text[-300:]) if status == 77 else self.tried(status, text)

    def tried(self, status, text):
        found = self.read(text)
        words = (f"{text[-4000:]}\nstatus {status}{'' if found else ', no figures were found'}\n"
                 f"replay: FIRN_TEST_GPU={GPU} {' '.join(map(str, self.command))}")
        if not found:
            return Tried(failed=1, words=words)
        errors = max(found.errors, 0)
        failed = found.wrong or int(status != 0)
        return Tried(found.tried, faults=max(found.faults, 0), right=found.survived - errors,
                     refused=errors, failed=failed, words=words if failed else "")


def pytest_tests(text):
    found = re.search(r"^=* ?(?:(\d+) failed, )?(\d+) passed", text, re.M)
    if found is None:
        return None
    failed, passed = int(found.group(1) or 0), int(found.group(2))
    return figures.Figures(failed + passed, "tests", passed)


def minutes_for_all(normal, every):
    """What is allowed to a program of tests/faults: with --long it fails every call, not each so
    many-th. (Alone on two cores: 1 and 33 minutes; the hour has as many workers as cores.)"""
    return every if os.environ.get("FIRN_TEST_LENGTH") == "long" else normal


def pieces():
    python = str(ROOT / ".venv/bin/python")
    return [
        Programs("plain", 6), Programs("driver", 5), Programs("disk", 3), Programs("lost", 2),
        Programs("full", 1), Programs("killed", 3), Tags(),
        Seeds("bytes", "tests/allocator/engine_property_test", 3),
        Seeds("bytes, places", "tests/allocator/engine_places_property_test", 2),
        Seeds("store", "tests/backing/store/store_model_test", 1, "FIRN_SEED"),
        Whole("driver's nth calls", [str(BUILD / "tests/faults/driver_faults_test")],
              BUILD / "tests/faults/driver_faults_test", minutes_for_all(20, 60),
              figures.nth_calls),
        Whole("process's nth calls", [str(BUILD / "tests/faults/process_faults_test")],
              BUILD / "tests/faults/process_faults_test", minutes_for_all(30, 150),
              figures.nth_calls),
        Whole("corrupt slots", [str(BUILD / "tests/backing/store/store_corruption_test")],
              BUILD / "tests/backing/store/store_corruption_test", 20,
              figures.corruptions),
        Whole("fuzzers", ["bash", "tests/fuzz/run.sh"], "tests/fuzz/run.sh", 30,
              figures.fuzzers, ("operations", "faults")),
        Whole("real faults", [python, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                              "tests/real_faults"], "tests/real_faults/conftest.py", 40,
              pytest_tests, ("operations", "faults")),
    ]
