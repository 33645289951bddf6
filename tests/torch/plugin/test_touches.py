"""Every way of using memory in touch_cases.py is seen: with everything that may be spilled away
after every operator, the bytes are the native allocator's; a use that went unseen would end the
process, because nothing is mapped at that address."""

import os

import pytest
import touch_cases
from conftest import run_cases

ADVERSARIAL = "backend:firn,firn_host:1GiB,firn_test_adversarial:1"

# Printed by each case at its end: something was spilled, nothing was lost, the engine is sound.
AFTER = """
import firn
from firn import _autoload
d = firn.stats()["devices"][0]
print("#", d["spilled_bytes"] > 0, d["lost_blocks"], d["zero_copy_bytes"])
_autoload.plugin().firn_torch_check()
"""


# Triton's: torch 2.13 has an operator of it for products of batches of vectors (torch/_native).
NO_GPU = "Please make sure GPU is set up"


def needs_a_gpu(errors):
    """With another torch than the one that all tests are for (other_torch.sh)."""
    return "FIRN_TEST_PYTHON" in os.environ and NO_GPU in errors


@pytest.mark.parametrize("group", touch_cases.GROUPS)
def test_uses_are_seen(software_environment, tmp_path, group):
    cases, wrong, impossible = touch_cases.GROUPS[group], [], 0
    settings = {**software_environment, "OMP_NUM_THREADS": "1"}
    native = run_cases(settings, tmp_path, cases, touch_cases.FRAME)
    firn = run_cases(settings, tmp_path, cases, touch_cases.FRAME, AFTER, ADVERSARIAL)
    for name in cases:
        if native[name]["status"] != 0 and needs_a_gpu(native[name]["errors"]):
            impossible += 1
            continue
        assert native[name]["status"] == 0, (name, native[name]["errors"])  # no example
        assert native[name]["output"].strip(), name
        lines = firn[name]["output"].splitlines()
        if (firn[name]["status"] != 0 or lines[-1:] != ["# True 0 0"] or
                lines[:-1] != native[name]["output"].splitlines()):
            wrong.append((name, native[name]["output"][-600:], firn[name]))
    assert wrong == [] and impossible < len(cases)
