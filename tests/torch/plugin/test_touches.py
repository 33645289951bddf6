"""Every way of using memory in touch_cases.py is seen: with everything that may be spilled away
after every operator, the bytes are the native allocator's; a use that went unseen would end the
process, because nothing is mapped at that address."""

import json
import subprocess
import textwrap

import pytest
import touch_cases
from conftest import PYTHON, ROOT

ADVERSARIAL = "backend:firn,firn_host:1GiB,firn_adversarial:1"

# Printed by each case at its end: something was spilled, nothing was lost, the engine is sound.
AFTER = """
import firn
from firn import _autoload
d = firn.stats()["devices"][0]
print("#", d["spilled_bytes"] > 0, d["lost_blocks"], d["zero_copy_bytes"])
_autoload.plugin().firn_torch_check()
"""


def run_cases(environment, folder, names, conf=None):
    """{name: what fork_cases.py says of it}"""
    cases = {name: textwrap.dedent(touch_cases.CASES[name]) for name in names}
    wanted = folder / ("cases-%s.json" % bool(conf))
    wanted.write_text(json.dumps({"before": touch_cases.FRAME, "after": AFTER if conf else "",
                                  "cases": cases}))
    settings = {**environment, "OMP_NUM_THREADS": "1"}
    if conf:
        settings["PYTORCH_CUDA_ALLOC_CONF"] = conf
    script = str(ROOT / "tests/torch/plugin/fork_cases.py")
    done = subprocess.run([PYTHON, script, str(wanted)], env=settings, cwd=folder, text=True,
                          capture_output=True, timeout=1500, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("group", ["WITHIN", "KINDS", "WAYS", "STORAGES"])
def test_uses_are_seen(software_environment, tmp_path, group):
    names = list(getattr(touch_cases, group))
    native = run_cases(software_environment, tmp_path, names)
    firn = run_cases(software_environment, tmp_path, names, ADVERSARIAL)
    wrong = []
    for name in names:
        assert native[name]["status"] == 0, (name, native[name]["errors"])  # no example
        assert native[name]["output"].strip(), name
        lines = firn[name]["output"].splitlines()
        if (firn[name]["status"] != 0 or lines[-1:] != ["# True 0 0"] or
                lines[:-1] != native[name]["output"].splitlines()):
            wrong.append((name, native[name]["output"][-600:], firn[name]))
    assert wrong == []
