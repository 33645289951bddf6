"""An operator whose tensors do not fit the budget together, where host memory cannot be had at
device addresses: it is refused before its kernel, and the program goes on."""

import pytest

# Two tensors of 40 MiB, of which 64 MiB allow one at a time.
PROGRAM = """
    import torch, firn
    half = torch.ones(10 << 20, device="cuda")
    other = torch.full((10 << 20,), 2.0, device="cuda")

    def refused(operator, kind):
        try:
            operator()
        except RuntimeError as error:
            assert isinstance(error, kind), type(error)
            words = str(error)
            for each in ("CUDA out of memory", "firn_budget", "host memory", "REASON"):
                assert each in words, words
        else:
            raise AssertionError("it ran")

    refused(lambda: half.add_(other), RuntimeError)       # allocates nothing: a storage that throws
    refused(lambda: torch.equal(half, other), RuntimeError)
    refused(lambda: half + other, RuntimeError)
    refused(lambda: torch._foreach_add_([half], [other]), torch.OutOfMemoryError)
    torch.cuda.synchronize()
    # Nothing was written, and one at a time they can be used.
    assert half.sum().item() == 10 << 20
    assert other.sum().item() == 2 * (10 << 20)
    half.mul_(3)
    assert half.sum().item() == 3 * (10 << 20)
    del other
    assert (half[:1 << 20] + 1).sum().item() == 4 * (1 << 20)
    torch.cuda.synchronize()
    print("went on", firn.stats()["devices"][0]["zero_copy_bytes"])
"""
CONF = "backend:firn,firn_budget:64MiB,firn_host:256MiB,firn_watch:0"


@pytest.mark.parametrize("kind, reason", [
    ("none", "the driver lacks support"),
    ("fail", "the driver refuses memory of NUMA node"),
    ("crash", "the driver crashed the trial process"),
])
def test_the_operator_is_refused_and_the_program_goes_on(run, kind, reason):
    done = run(PROGRAM.replace("REASON", reason), conf=CONF, FIRN_GPU_HOST_NUMA=kind)
    assert "went on 0" in done.stdout, done.stdout + done.stderr


def test_with_host_memory_it_runs(run):
    done = run("""
        import torch, firn
        half = torch.ones(10 << 20, device="cuda")
        other = torch.full((10 << 20,), 2.0, device="cuda")
        half.add_(other)
        assert half.sum().item() == 3 * (10 << 20)
        print("zero copy", firn.stats()["devices"][0]["zero_copy_bytes"])
    """, conf=CONF)
    assert int(done.stdout.split()[-1]) > 0, done.stdout + done.stderr
