"""The marks of all of pytest's tests, and which of them one process runs, where there are several
(tests/run.sh)."""

import pathlib
import re
import sys

import pytest

# script_runs, which the benches use too.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "pytorch_plugin/runs"))

# Tests that look at one long run together, by their names. Those for which a pattern's groups are
# the same go into one process; every other test goes into whichever is free.
TOGETHER = [re.compile(pattern) for pattern in (
    r"bench/test_gpu_carried\.py", r"bench/test_jobs\.py::test_(?:the_recorded|other_ways|shards)",
    r"bench/test_jobs_recorder\.py",
    r"command/test_calls\.py", r"command/test_simulate_large\.py",
    r"calls/test_answers\.py::\w+\[(\w+)", r"plugin/test_compiled\.py",
    r"plugin/test_observer\.py::test_same_bytes",
    r"recipes/test_recipes\.py::test_(?:every_op|each|samples|results)", r"ranks/test_nccl\.py",
    r"ranks/test_ranks\.py", r"software/test_cases\.py::\w+\[(\w+)-.*-(\w+)\]",
    r"torch/test_packaging\.py", r"upstream/test_runner\.py")]


def pytest_configure(config):
    for line in ("quick: part of `tests/run.sh quick`", "long: only with `tests/run.sh --long`"):
        config.addinivalue_line("markers", line)


def group_of(test):
    for pattern in TOGETHER:
        found = pattern.search(test)
        if found:
            return " ".join((pattern.pattern, *found.groups()))
    return test


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's, which other_torch.sh does without
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return group_of(nodeid)

    return Groups(config, log)
