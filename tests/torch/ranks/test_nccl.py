"""Ranks with NCCL: the real ProcessGroupNCCL over the software libnccl.so.2. Its collectives run on
streams of their own while the program goes on; a use of a tensor there that Firn misses is a crash
in adversarial mode, and other bits at half the memory."""

import importlib.util
import os
import pathlib
import re
import signal
import subprocess

import pytest

import script_runs
from test_ranks import ENVIRONMENT, RANKS, check_nets, check_same, firn_run, launch

HERE = pathlib.Path(__file__).parent
# With as many layers as it takes for a third of the peak to hold the largest operator.
TRAINING = ("ddp", "fsdp1:5", "fully_shard:3", "tensor_parallel", "pipeline",
            "pipeline_interleaved")
# At a third of the memory, too. (The others take 100 s of a processor: with --long.)
THIRD = ("ddp", "pipeline_interleaved", "nccl")
# Adversarially; the rest of TRAINING with --long (test_ranks.py has its like over gloo).
ADVERSARIAL = "fully_shard:3"
NCCL = ("--backend", "nccl")
# How often each job is seen with less memory, each time in processes of its own.
LAUNCHES = 20 if os.environ.get("FIRN_TEST_LENGTH") == "long" else 1


@pytest.fixture(scope="module")
def native(paths, tmp_path_factory):
    run = launch(paths, tmp_path_factory.mktemp("nccl"),
                 [*NCCL, *TRAINING, "collectives", "nccl", "crossing"],
                 script_runs.native_environment(paths))
    assert run.status == 0, run.text
    assert not [line for lines in run.lines for line in lines if "Error" in line[2]], run.lines
    assert run.results(["nccl"])[0] != run.results(["nccl"])[1]  # not all, but those of parts
    return run


def with_firn(paths, folder, spill_dir, cases, budget, *options, host="32MiB"):
    return launch(paths, folder, [*NCCL, *cases], script_runs.clean_environment(),
                  firn_run(paths, folder, [spill_dir], budget, *options, host=host))


@pytest.mark.parametrize("cases", [
    pytest.param((ADVERSARIAL, "collectives", "nccl"), id="some"),
    pytest.param(tuple(sorted({*TRAINING} - {ADVERSARIAL})), id="rest", marks=pytest.mark.long)])
def test_adversarial(paths, native, spill_dir, tmp_path, cases):
    run = with_firn(paths, tmp_path, spill_dir, cases, "4GiB", "--adversarial", *script_runs.NETS)
    check_same(run, native, cases)
    check_nets(run)


@pytest.mark.long  # (twice four processes)
def test_four_ranks_and_groups_of_them(paths, spill_dir, tmp_path):
    """Bound to their devices first, so that torch divides one communicator into others."""
    cases = ["nccl", "tensor_parallel", "more"]
    words = [*NCCL, "--bind", *cases]
    folders = [tmp_path / name for name in ("native", "firn")]
    for each in folders:
        each.mkdir()
    native = launch(paths, folders[0], words, script_runs.native_environment(paths), ranks=4)
    assert native.status == 0, native.text
    run = launch(paths, folders[1], words, script_runs.clean_environment(),
                 firn_run(paths, folders[1], [spill_dir], "1GiB", "--adversarial",
                          *script_runs.NETS), ranks=4)
    check_same(run, native, cases, ranks=4)
    check_nets(run)
    for each in (native, run):
        assert not [line for lines in each.lines for line in lines if "Error" in line[2]]


def part_of(peak, fraction):
    return int(peak * fraction) // script_runs.GRANULE * script_runs.GRANULE


# Seen under all nets at half of its own peak; what leaves is compared at a third of it. (The rest of
# TRAINING with --long: test_ranks.py has its like over gloo.)
HALF = ("ddp", "fully_shard:3", "pipeline_interleaved", "collectives", "nccl")
SQUEEZED = [pytest.param(case, fraction, nets, id=f"{case}-{name}",
                         marks=() if case in here else pytest.mark.long)
            for case in (*TRAINING, "collectives", "nccl")
            for name, fraction, nets, here in (("half", 0.5, script_runs.NETS, HALF),
                                               ("third", 0.35, ("--verify",), THIRD))]


@pytest.mark.parametrize("case, fraction, nets", SQUEEZED)
def test_bits_are_equal_with_less_memory(paths, native, spill_dir, tmp_path, case, fraction, nets):
    budget = part_of(native.most(case, "peak"), fraction)
    for time in range(LAUNCHES):
        folder = tmp_path / str(time)
        folder.mkdir()
        run = with_firn(paths, folder, spill_dir, [case], budget, *nets, host="16MiB")
        check_same(run, native, [case])
        check_nets(run)
        assert run.most("all", "device") <= budget < run.most(case, "peak")


@pytest.mark.parametrize("policy", ["age", "lifetime"])
def test_collectives_under_pressure(paths, native, spill_dir, tmp_path, policy):
    run = with_firn(paths, tmp_path, spill_dir, ["nccl"], "32MiB", "--policy", policy, host="16MiB")
    check_same(run, native, ["nccl"])


def test_a_wait_that_ends_only_when_this_process_goes_on(paths, native, spill_dir, tmp_path):
    """The device waits for the other rank, which waits for memory first, as this one does."""
    run = with_firn(paths, tmp_path, spill_dir, ["crossing"], "48MiB")
    assert run.status == 0, run.text
    assert run.results(["crossing"]) == native.results(["crossing"]), run.text
    assert native.most("crossing", "peak") > 48 << 20
    assert any(stats["devices"][0]["zero_copy_bytes"] > 0 for stats in run.stats), run.stats


def test_a_rank_that_is_killed_is_an_error_on_the_other(paths, tmp_path):
    command = [paths.python, str(HERE / "lost_rank.py")]
    environment = {**script_runs.native_environment(paths), **ENVIRONMENT,
                   "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "100"}  # four of these: 60 s
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path / "store")], env=environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) for rank in range(RANKS)]
    try:
        said = [each.communicate(timeout=script_runs.TIMEOUT_S)[0] for each in ranks]
    finally:
        for each in ranks:
            each.kill()
    assert ranks[1].returncode == -signal.SIGKILL and "sum 2.0" in said[1], said[1]
    assert ranks[0].returncode not in (0, None) and "not reached" not in said[0], said[0]
    assert "sum 2.0" in said[0] and "ncclRemoteError" in said[0], said[0]


def wheel(name):
    return pathlib.Path(importlib.util.find_spec(name).submodule_search_locations[0])


def names_in(path, which):
    lines = subprocess.run(["nm", "-D", which, str(path)], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    return {line.split()[-1] for line in lines if re.search(r" nccl\w+$", line)}


def test_every_entry_that_torch_imports_is_there(paths):
    (library,) = [path for path in paths.libraries if "nccl" in path.name]
    wanted = set()
    for path in (wheel("torch") / "lib").glob("libtorch*.so"):
        wanted |= names_in(path, "--undefined-only")
    assert len(wanted) > 30
    assert not wanted - names_in(library, "--defined-only")


def test_values_are_those_of_the_header():
    values = re.compile(r"^\s*(nccl[A-Z]\w+)\s*=\s*(\d+)", re.M)
    ours = script_runs.ROOT / "backing/gpu/software/nccl/abi.h"
    known = dict(values.findall(ours.read_text()))
    real = {}
    header = wheel("nvidia.nccl") / "include/nccl.h"
    for line in header.read_text().splitlines():
        real.update(re.findall(r"(nccl[A-Z]\w+)\s*=\s*(\d+)\b", line))
    known.pop("ncclMaxRedOp", None)
    assert len(known) > 25
    assert {name: real.get(name) for name in known} == known
