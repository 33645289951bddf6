"""firn.on_host(): tensors of the device that the CPU uses in Firn's host memory."""

import pytest

CONF = "backend:firn,firn_budget:64MiB,firn_host:64MiB,firn_watch:0"


def test_pieces_are_the_tensors_bytes(run):
    """As kernels left them, and kernels see what was written; the version is another one."""
    run("""
import torch, firn
value = torch.arange(5_000_000, device="cuda", dtype=torch.float32).mul_(2)
(device,) = firn.stats()["devices"]
with firn.on_host(value) as pieces:
    assert all(each.device.type == "cpu" and each.dtype == value.dtype for each in pieces)
    assert len(pieces) > 1 and sum(each.numel() for each in pieces) == value.numel()
    assert torch.equal(torch.cat(pieces), 2 * torch.arange(5_000_000, dtype=torch.float32))
version = value._version
with firn.on_host(value, write=True) as pieces:
    for each in pieces:
        each.add_(1)
assert value._version > version
del pieces, each
value.mul_(3)
assert torch.equal(value.cpu(), 6 * torch.arange(5_000_000, dtype=torch.float32) + 3)
transposed = torch.ones(1024, 512, device="cuda", dtype=torch.bfloat16).t()
with firn.on_host(transposed, write=True) as (piece,):
    piece[1] = 7
assert float(transposed[1, 0]) == 7
(device,) = firn.stats()["devices"]
assert device["host_uses"] == 3 and device["lost_blocks"] == 0
""", conf=CONF)


def test_what_is_refused(run):
    run("""
import torch, firn
def refused(error, words, tensor):
    try:
        with firn.on_host(tensor):
            raise AssertionError(words)
    except error as why:
        assert words in str(why), why
large = torch.zeros(1 << 20, device="cuda")
refused(RuntimeError, "below 1 MiB", torch.zeros(8, device="cuda"))
refused(ValueError, "of 4194304 bytes", large[:1 << 19])
refused(RuntimeError, "of a CUDA device", torch.zeros(1 << 20))
refused(MemoryError, "firn_host", torch.zeros(15 << 20, device="cuda"))
with firn.on_host(large) as pieces:
    refused(RuntimeError, "in use there already", large)
    try:
        large.add_(1)
    except RuntimeError as why:
        assert "end_on_host() comes first" in str(why), why
    else:
        raise AssertionError("used on the device")
    del pieces
firn.pin(large)
refused(RuntimeError, "firn.pin()", large)
firn.unpin(large)
with firn.on_host(large) as pieces:
    pass
""", conf=CONF.replace("firn_host:64MiB", "firn_host:32MiB"))


def test_a_kernel_waits_for_the_end(run):
    run("""
import threading, torch, firn
value = torch.zeros(1 << 20, device="cuda")
begun, go_on = threading.Event(), threading.Event()
def work():
    with firn.on_host(value, write=True) as pieces:
        begun.set()
        go_on.wait(60)
        for each in pieces:
            each.fill_(5)
thread = threading.Thread(target=work)
thread.start()
begun.wait(60)
timer = threading.Timer(.5, go_on.set)
timer.start()
assert float(value.sum()) == 5 * (1 << 20) and go_on.is_set()
thread.join()
""", conf=CONF)


@pytest.mark.parametrize("conf", [None])
def test_without_firn(run, conf):
    run("""
import torch, firn
try:
    firn.on_host(torch.zeros(1 << 20))
except RuntimeError as why:
    assert "backend:firn" in str(why)
else:
    raise AssertionError
""", conf=conf)
