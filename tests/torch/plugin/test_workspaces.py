"""A library's workspace is allocated by one operator and used by others, which do not have it among
their arguments: it stays on the device, though some of the launches that use it are looked at."""

import pytest

# The first product allocates the workspace. Watching begins in the middle of a later one: the rest
# of that operator's launches are looked at. Then everything else is used in turn, at less than half
# of what there is, before the next product.
PROGRAM = """
    import torch
    torch.manual_seed(1)
    left = torch.randn(1024, 1024, device="cuda")                  # 4 MiB
    products = [left]
    for _ in range(40):
        products.append((left @ products[-1]).mul_(.03))
    def sums():
        return [float(each.double().sum()) for each in products]
    first = sums()
    for _ in range(3):
        assert torch.equal((left @ products[3]).mul_(.03), products[4])
        assert sums() == first
    print("went on", torch.cuda.memory_stats()["num_alloc_retries"])
    import firn
    stats = firn.stats()["devices"][0]
    assert stats["spilled_bytes"] > (64 << 20), stats["spilled_bytes"]
"""


@pytest.mark.parametrize("policy", ["age", "lifetime"])
def test_a_workspace_stays(run, libraries, policy):
    done = run(PROGRAM, conf=f"backend:firn,firn_budget:64MiB,firn_host:512MiB,firn_policy:{policy}",
               FIRN_GPU_WORKSPACE=str(4 << 20), LD_PRELOAD=libraries["software/libcudart.so.13"])
    assert "went on" in done.stdout, done.stdout + done.stderr


# Memory that torch.compile's code allocates for its kernels, in no operator, and that only their
# launches use, as a memset here does: twice what fits.
OWN = """
    import ctypes, torch
    from firn._addresses import storage_address
    make = torch._C._dynamo.guards._empty_strided_cuda
    cudart = ctypes.CDLL("libcudart.so.13")
    warm = [torch.zeros(1 << 20, device="cuda") for _ in range(10)]
    tensors = []
    for byte in range(32):
        tensors.append(make((1 << 20,), (1,), torch.float32))
        address = ctypes.c_void_p(storage_address(tensors[-1].untyped_storage()))
        assert cudart.cudaMemsetAsync(address, byte, 4 << 20, None) == 0
    torch.cuda.synchronize()
    for byte, each in enumerate(tensors):
        assert bool((each.view(torch.uint8) == byte).all()), byte
    print("went on")
"""


def test_what_only_launches_use_leaves(run, libraries):
    done = run(OWN, conf="backend:firn,firn_budget:64MiB,firn_host:512MiB",
               LD_PRELOAD=libraries["software/libcudart.so.13"])
    assert "went on" in done.stdout, done.stdout + done.stderr
