"""Every case of cases/*.py, in a process on the software device, under torch's native allocator as
it is and with expandable segments. One process runs a file's cases; each case is one test here."""

import ast
import json
import os
import signal
import subprocess
import sys

import pytest
import software_device

HERE = os.path.dirname(os.path.abspath(__file__))
MODES = {"native": {}, "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}
NATIVE_ONLY = {"sweep.py", "trainer.py"}  # long, and nothing in them depends on the allocator
# Those that do: the others' expandable segments are looked at with --long.
EXPANDABLE = {"capacity.py", "devices.py", "graphs.py", "memory.py"}
SETTINGS = {
    "memory.py": {"FIRN_GPU_MEMORY": "2GiB"},
    "capacity.py": {"FIRN_GPU_MEMORY": "48MiB"},
    "devices.py": {"FIRN_GPU_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "2,0"},
}
TIMEOUT_S = 900

pytestmark = pytest.mark.skipif(software_device.libraries() is None,
                                reason="the software device is not built")


def cases():
    for file in sorted(os.listdir(os.path.join(HERE, "cases"))):
        if not file.endswith(".py") or file.startswith("_"):
            continue
        with open(os.path.join(HERE, "cases", file), encoding="utf-8") as source:
            names = [node.name for node in ast.parse(source.read()).body
                     if isinstance(node, ast.FunctionDef) and node.name.startswith("case_")]
        for mode in ["native"] if file in NATIVE_ONLY else MODES:
            for name in names:
                here = mode == "native" or file in EXPANDABLE
                yield pytest.param(file, mode, name, id="%s-%s-%s" % (file[:-3], name[5:], mode),
                                   marks=() if here else pytest.mark.long)


_results = {}


def results(file, mode, wanted):
    """The words of the process for (file, mode); run once for all its cases."""
    if (file, mode) not in _results:
        env = software_device.environment(**MODES[mode], **SETTINGS.get(file, {}))
        process = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "run_cases.py"),
             os.path.join(HERE, "cases", file)] + wanted,
            env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True)
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            output += "\nkilled after %d s" % TIMEOUT_S
        found = {}
        for line in output.splitlines():
            if line.startswith("@{"):
                result = json.loads(line[1:])
                found[result["case"]] = result
        _results[file, mode] = found, process.returncode, output
    return _results[file, mode]


@pytest.fixture(scope="session")
def selected(request):
    """The cases of each (file, mode) that this session runs."""
    chosen = {}
    for item in request.session.items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if {"file", "mode", "name"} <= set(params):
            chosen.setdefault((params["file"], params["mode"]), []).append(params["name"])
    return chosen


@pytest.mark.parametrize("file,mode,name", list(cases()))
def test_case(file, mode, name, selected):
    found, status, output = results(file, mode, selected[file, mode])
    tail = "\n".join(output.splitlines()[-40:])
    assert name in found, "the process ended (status %s) before %s:\n%s" % (status, name, tail)
    if "No module named 'torchvision'" in (found[name]["error"] or ""):
        pytest.skip("no torchvision here")
    assert found[name]["error"] is None, found[name]["error"]
    # exit: nothing may crash after the last case either
    assert status == 0, tail
