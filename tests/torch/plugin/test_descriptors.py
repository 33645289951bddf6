"""A PyTorch program that closes descriptors it did not open, and then opens files of its own that
get the same numbers: never a byte of Firn's is in them, and all is there. Where the kernel gives
I/O threads no table of descriptors of their own, what is lost is an error that says why."""

import pytest

BUDGET = 64  # MiB

# As a container's seccomp filter does.
ONE_TABLE = """
    import ctypes, errno, struct
    CLOSE_RANGE = 436
    program = b"".join(struct.pack("HBBI", *each) for each in [
        (0x20, 0, 0, 0),                           # the call's number
        (0x15, 1, 0, CLOSE_RANGE),
        (0x06, 0, 0, 0x7fff0000),                  # allowed
        (0x06, 0, 0, 0x00050000 | errno.EPERM)])
    held = ctypes.create_string_buffer(program)
    filter = struct.pack("HP", len(program) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter, 0, 0) == 0
    assert libc.syscall(CLOSE_RANGE, 9999, 9999, 0) == -1
    assert ctypes.get_errno() == errno.EPERM
"""

CLOSES = """
    import os, pathlib, sys
    import torch

    def spilled(n):
        return [torch.full((4 << 20,), float(i), device="cuda") for i in range(n)]

    tensors = spilled(16)  # four times the budget
    for tensor in tensors:
        tensor.add_(1)
    torch.cuda.synchronize()
    for number in range(3, 900):  # but the driver's: no CUDA would be left
        try:
            of_driver = os.readlink("/proc/self/fd/%d" % number).startswith(("/memfd:", "/dev/"))
        except FileNotFoundError:
            continue
        if not of_driver:
            os.close(number)
    mine = []
    while not mine or mine[-1].fileno() < 900:
        mine.append(open("mine-%d" % len(mine), "wb+", buffering=0))
        mine[-1].write(b"twelve bytes")
    error = None
    try:
        for round in range(3):
            for tensor in tensors:
                tensor.add_(1)
        for i, tensor in enumerate(tensors):
            assert tensor[0].item() == tensor[-1].item() == i + 4, i
    except RuntimeError as caught:
        error = str(caught)
    for file in mine:
        assert pathlib.Path(file.name).read_bytes() == b"twelve bytes", file.name
    print(error if error else "all there")
"""


@pytest.mark.parametrize("table", ["own", "one"])
@pytest.mark.parametrize("store", ["io_uring", "threads"])
def test_closed_descriptors(run, tmp_path, store, table):
    lost = store == "threads" and table == "one"
    done = run((ONE_TABLE if table == "one" else "") + CLOSES,
               conf="backend:firn,firn_budget:%dMiB,firn_host:32MiB,firn_dir:%s,"
                    "firn_store:%s,firn_test_allow_tmpfs:1" % (BUDGET, tmp_path, store),
               status=1 if lost else 0)
    if lost:
        assert "LOST blocks (earlier lines name them): 1" in done.stderr
        assert "closed descriptors that it did not open" in done.stderr
        assert "lost" in done.stdout.lower() or "LOST" in done.stderr, done.stdout + done.stderr
    else:
        assert done.stdout == "all there\n", done.stdout + done.stderr


CHILD = """
    import os, signal, sys, time
    import torch

    tensors = [torch.full((4 << 20,), float(i), device="cuda") for i in range(16)]
    for tensor in tensors:
        tensor.add_(1)
    torch.cuda.synchronize()
    before = {os.readlink("/proc/self/fd/" + fd) for fd in os.listdir("/proc/self/fd")
              if os.path.islink("/proc/self/fd/" + fd)}
    assert any("(deleted)" in name and name.startswith(os.getcwd()) for name in before), before
    child = os.fork()
    if child == 0:
        kept = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                kept.append(os.readlink("/proc/self/fd/" + fd))
            except FileNotFoundError:
                pass  # the listing's own
        bad = [name for name in kept if name.startswith(os.getcwd()) or "io_uring" in name
               or name == "/"]
        print("kept:", bad, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    for i, tensor in enumerate(tensors):
        assert tensor[0].item() == i + 1
    print("parent well")
"""


@pytest.mark.parametrize("store", ["io_uring", "threads"])
def test_a_forked_child_keeps_nothing(run, tmp_path, store):
    done = run(CHILD, conf="backend:firn,firn_budget:%dMiB,firn_host:32MiB,firn_dir:%s,"
                           "firn_store:%s,firn_test_allow_tmpfs:1" % (BUDGET, tmp_path, store))
    assert done.stdout == "kept: []\nparent well\n", done.stdout + done.stderr
