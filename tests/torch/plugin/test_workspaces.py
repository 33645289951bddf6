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
