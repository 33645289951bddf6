"""Lists of tensors that do not fit the budget together are worked on in slices: the same bits as
without a budget, and the budget holds."""

import list_cases
import pytest
from conftest import run_cases

AFTER = """
import firn
from firn import _autoload
d = firn.stats()["devices"][0]
print("#", d["peak_device_bytes"], d["budget_bytes"], d["zero_copy_bytes"], d["spilled_bytes"] > 0,
      d["lost_blocks"])
_autoload.plugin().firn_torch_check()
"""


def compare(environment, folder, cases, budget_mib):
    """What is not as natively, or above the budget: [(case, why, native, firn)]"""
    settings = {**environment, "OMP_NUM_THREADS": "1"}
    native = run_cases(settings, folder, cases, list_cases.FRAME)
    firn = run_cases(settings, folder, cases, list_cases.FRAME, AFTER,
                     f"backend:firn,firn_budget:{budget_mib}MiB,firn_host:1GiB,firn_watch:0")
    wrong = []
    for name in cases:
        assert native[name]["status"] == 0 and native[name]["output"], native[name]
        *lines, last = firn[name]["output"].splitlines() or [""]
        found = last.split()
        if firn[name]["status"] != 0 or found[:1] != ["#"]:
            wrong.append((name, "failed", "", firn[name]))
        elif lines != native[name]["output"].splitlines():
            wrong.append((name, "differs", native[name]["output"], firn[name]["output"]))
        elif (int(found[1]) > int(found[2]) or found[4:] != ["True", "0"] or
              (found[3] != "0" and name not in list_cases.ON_HOST_MEMORY)):
            wrong.append((name, "peak, budget, zero copy, spilled, lost", "", found))
    return wrong


@pytest.mark.parametrize("lists", sorted({lists for lists, _ in list_cases.OPTIMIZERS.values()}))
def test_optimizers_in_a_third(software_environment, tmp_path, lists):
    cases = {name: code for name, (count, code) in list_cases.OPTIMIZERS.items() if count == lists}
    assert compare(software_environment, tmp_path, cases, list_cases.budget(lists)) == []


def test_lists_above_the_budget(software_environment, tmp_path):
    assert compare(software_environment, tmp_path, list_cases.LISTS, 16) == []


def test_lists_are_cut_by_what_can_be_had(run):
    """30 MiB, less than half of the budget, where 28 of it can leave: without a byte in host
    memory at the device's addresses."""
    run("""
        import torch, firn
        MIB = 1 << 20
        kept = torch.cuda.caching_allocator_alloc(36 * MIB)
        xs = [torch.full((3 * MIB,), i, dtype=torch.uint8, device="cuda") for i in range(5)]
        ys = [torch.full((3 * MIB,), 10 + i, dtype=torch.uint8, device="cuda") for i in range(5)]
        torch._foreach_add_(xs, ys)
        for i, x in enumerate(xs):
            assert x.sum().item() == (10 + 2 * i) * 3 * MIB, i
        device = firn.stats()["devices"][0]
        assert device["zero_copy_bytes"] == 0 and device["spilled_bytes"] > 0, device
        torch.cuda.caching_allocator_delete(kept)
    """, conf="backend:firn,firn_budget:64MiB,firn_host:1GiB")


def test_lists_are_cut_finer_before_memory_is_out(run):
    """Results four times as large as what is given, which nobody foresees."""
    run("""
        import torch, firn
        MIB = 1 << 20
        xs = [torch.full((7 * MIB,), i + 1, dtype=torch.uint8, device="cuda") for i in range(2)]
        ys = torch._foreach_mul(xs, 2.5)
        for i, (x, y) in enumerate(zip(xs, ys)):
            assert y.sum(dtype=torch.float64).item() == 2.5 * (i + 1) * 7 * MIB, i
            assert x.sum().item() == (i + 1) * 7 * MIB, i
        assert firn.stats()["devices"][0]["zero_copy_bytes"] == 0
    """, conf="backend:firn,firn_budget:64MiB,firn_host:1GiB,firn_watch:0")
