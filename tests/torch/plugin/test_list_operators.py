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
