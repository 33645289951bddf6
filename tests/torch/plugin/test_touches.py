"""Every way of using memory in touch_cases.py is seen: with everything that may be spilled away
after every operator, the bytes are the native allocator's; a use that went unseen would end the
process, because nothing is mapped at that address."""

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


@pytest.mark.parametrize("group", touch_cases.GROUPS)
def test_uses_are_seen(software_environment, tmp_path, group):
    cases, wrong = touch_cases.GROUPS[group], []
    settings = {**software_environment, "OMP_NUM_THREADS": "1"}
    native = run_cases(settings, tmp_path, cases, touch_cases.FRAME)
    firn = run_cases(settings, tmp_path, cases, touch_cases.FRAME, AFTER, ADVERSARIAL)
    for name in cases:
        assert native[name]["status"] == 0, (name, native[name]["errors"])  # no example
        assert native[name]["output"].strip(), name
        lines = firn[name]["output"].splitlines()
        if (firn[name]["status"] != 0 or lines[-1:] != ["# True 0 0"] or
                lines[:-1] != native[name]["output"].splitlines()):
            wrong.append((name, native[name]["output"][-600:], firn[name]))
    assert wrong == []
