"""The net under uses that nobody said: a kernel of an extension writes to a tensor that Firn keeps
a copy of. It is launched past Firn: the driver was opened before."""

import pytest

CONF = "backend:firn,firn_budget:40MiB,firn_host:256MiB,firn_watch:0,firn_policy:age"
UNSEEN = """
    import ctypes, os, torch
    import firn
    from firn import _addresses, _autoload
    plugin = _autoload.plugin()
    driver = ctypes.CDLL("libcuda.so.1")
    x = torch.full((2 << 20,), 1.0, device="cuda")
    torch.cuda.synchronize()
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuModuleLoad(ctypes.byref(module), os.environ["KERNEL"].encode()) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"add_one") == 0

    def launch(x):
        address = ctypes.c_uint64(_addresses.storage_address(x.untyped_storage()))
        count = ctypes.c_int(x.numel())
        words = (ctypes.c_void_p * 2)(ctypes.addressof(address), ctypes.addressof(count))
        assert driver.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, words, None) == 0

    plugin.firn_torch_spill_all()
    x.sum().item()             # back, and the copy in host memory is kept
    torch.cuda.synchronize()
    import time
    for _ in range(20):        # (the service thread has seen that it is)
        time.sleep(0.01)
    launch(x)                  # nobody says so
    torch.cuda.synchronize()
    print("written", flush=True)
    plugin.firn_torch_spill_all()
    print(x[0].item())
"""


def test_without_the_net_the_write_is_lost(run, kernel):
    assert run(UNSEEN, conf=CONF, **kernel).stdout.split() == ["written", "1.0"]


def test_verify_says_it_keeps_the_write_and_ends_the_process_with_an_error(run, kernel):
    done = run(UNSEEN, conf=CONF + ",firn_verify:1", status=1, **kernel)
    assert done.stdout.split() == ["written", "2.0"]
    assert "was written UNSEEN" in done.stderr and "touch read, in aten::sum" in done.stderr
    assert "firn_verify:" in done.stderr.splitlines()[-1]


def test_verify_by_the_environment(run, kernel):
    done = run(UNSEEN, conf=CONF, FIRN_VERIFY="1", status=1, **kernel)
    assert "was written UNSEEN" in done.stderr


def test_guard_makes_it_a_fault(run, kernel):
    done = run(UNSEEN, conf=CONF + ",firn_test_guard:1", status=None, **kernel)
    assert done.returncode != 0 and "1.0" not in done.stdout
    assert "written" not in done.stdout


@pytest.mark.parametrize("nets", [",firn_verify:1,firn_test_guard:1,firn_test_poison:1"])
def test_nothing_is_found_where_every_use_is_said(run, nets):
    done = run("""
        import torch, firn
        xs = [torch.full((2 << 20,), float(i), device="cuda") for i in range(12)]
        for round in range(4):
            for x in xs:
                x.add_(1)
            assert all(x.sum().item() == (i + round + 1) * (2 << 20) for i, x in enumerate(xs))
            del xs[0]
            xs.append(torch.full((2 << 20,), 11.0 + round + 1, device="cuda"))
            xs = [x - 0 for x in xs]
            for i, x in enumerate(xs):
                x.fill_(i + round + 1)
        (device,) = firn.stats()["devices"]
        assert device["verified_bytes"] > 0 and device["unseen_writes"] == 0
    """, conf=CONF + nets)
    assert "UNSEEN" not in done.stderr
