"""`firn simulate` on a trace of ten million kernels: an answer, or a refusal that says how many are
too many; in bounded time and memory either way."""

import json
import os
import subprocess

import pytest
from firn_command import clean_environment, find_binary, refused

KERNELS = 10_000_000
KERNELS_RUN_MOST = 1 << 24  # in all iterations
SECONDS_MOST = 300
BYTES_MOST = 2 << 30


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The prefix of a trace of tensors that are made, used once and made again."""
    prefix = tmp_path_factory.mktemp("large") / "t"
    with open(f"{prefix}.tensors.csv", "w") as out:
        out.write("tensor,bytes,kind\n")
        out.writelines(f"{i},41943040,{'transient' if i < 16 else 'persistent'}\n"
                       for i in range(20))
    with open(f"{prefix}.kernels.csv", "w") as out:
        out.write("kernel,name,duration_ns,inputs,outputs\n")
        for begin in range(0, KERNELS, 100_000):
            out.write("".join(f"{i},k,100000,{i % 16} {16 + i % 4},{(i + 1) % 16}\n"
                              for i in range(begin, begin + 100_000)))
    yield str(prefix)
    for kind in ("tensors", "kernels"):
        os.unlink(f"{prefix}.{kind}.csv")


def test_more_than_can_be_run_are_refused_by_number(firn, large):
    result = firn("simulate", large, "--gpu-memory", "4GiB")
    line = KERNELS_RUN_MOST // 6 + 2  # the first kernel beyond, below the header
    refused(result, f"t.kernels.csv:{line}:", str(KERNELS_RUN_MOST // 6), str(KERNELS_RUN_MOST),
            "--iterations")


@pytest.mark.parametrize("policy", ["age", pytest.param("lifetime", marks=pytest.mark.long)])
def test_ten_million_are_run_once(large, policy):
    command = [find_binary(), "simulate", large, "--gpu-memory", "4GiB", "--policy", policy,
               "--iterations", "1", "--json"]
    running = subprocess.Popen(["timeout", str(SECONDS_MOST), *command], text=True,
                               stdout=subprocess.PIPE, env=clean_environment())
    text = running.stdout.read()
    _, status, usage = os.wait4(running.pid, 0)
    running.returncode = os.waitstatus_to_exitcode(status)
    assert running.returncode == 0
    assert usage.ru_maxrss << 10 < BYTES_MOST
    found = json.loads(text)
    assert found["ideal_s"] == pytest.approx(KERNELS * 1e-4)
    assert found["fraction_of_ideal"] > 0.999
