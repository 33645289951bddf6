"""Lists of tensors that do not fit the budget together are worked on in slices: the same bits as
without a budget, and the budget holds."""

import json
import subprocess
import textwrap

import list_cases
import pytest
from conftest import PYTHON, ROOT

AFTER = """
import firn
from firn import _autoload
d = firn.stats()["devices"][0]
print("#", d["peak_device_bytes"], d["budget_bytes"], d["zero_copy_bytes"], d["spilled_bytes"] > 0,
      d["lost_blocks"])
_autoload.plugin().firn_torch_check()
"""


def run_cases(environment, folder, cases, budget_mib=None):
    wanted = folder / ("cases-%s.json" % budget_mib)
    wanted.write_text(json.dumps({
        "before": list_cases.FRAME, "after": AFTER if budget_mib else "",
        "cases": {name: textwrap.dedent(code) for name, code in cases.items()}}))
    settings = {**environment, "OMP_NUM_THREADS": "1"}
    if budget_mib:
        settings["PYTORCH_CUDA_ALLOC_CONF"] = \
            "backend:firn,firn_budget:%dMiB,firn_host:1GiB,firn_watch:0" % budget_mib
    done = subprocess.run([PYTHON, str(ROOT / "tests/torch/plugin/fork_cases.py"), str(wanted)],
                          env=settings, cwd=folder, text=True, capture_output=True, timeout=1500,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}


def compare(environment, folder, cases, budget_mib):
    """What is not as natively, or above the budget: [(case, why, native, firn)]"""
    native = run_cases(environment, folder, cases)
    firn = run_cases(environment, folder, cases, budget_mib)
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
