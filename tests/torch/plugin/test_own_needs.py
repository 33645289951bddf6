"""The driver needs device memory for itself, for streams and kernels' first launches, while tensors
fill the budget, which is all that was free: tensors give way, and the bits are the same."""

import pytest

PROGRAM = """
    import torch
    tensors = [torch.full((5 << 20,), float(i), device="cuda") for i in range(30)]   # 20 MiB each
    for each in tensors:
        each.mul_(2)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(priority=p) for p in (0, -1, -2) for _ in range(32)]
    for i, stream in enumerate(streams[:30]):
        with torch.cuda.stream(stream):
            tensors[i].add_(1)
    torch.cuda.synchronize()
    for i, each in enumerate(tensors):
        assert bool((each == 2 * i + 1).all()), i
    print("went on")
"""


@pytest.fixture
def in_front(run, libraries):
    """As run(), with Firn in front of the driver."""
    def go(memory):
        return run(PROGRAM, conf="backend:firn,firn_host:768MiB", FIRN_GPU_MEMORY=memory,
                   FIRN_GPU_OWN="stream:2MiB,launch:8MiB",
                   LD_PRELOAD=libraries["software/libcudart.so.13"])
    return go


def test_tensors_give_way_to_the_driver(in_front):
    done = in_front("512MiB")
    assert "went on" in done.stdout, done.stdout + done.stderr
    assert "no memory left for a stream" in done.stderr, done.stderr
    assert "firn_budget" in done.stderr, done.stderr


def test_nothing_is_said_where_there_is_enough(in_front):
    done = in_front("2GiB")
    assert "went on" in done.stdout, done.stdout + done.stderr
    assert "no memory left" not in done.stderr, done.stderr
