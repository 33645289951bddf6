"""find_torch.py: finds torch without importing it."""

import json
import os
import subprocess
import sys

import software_device

SCRIPT = os.path.join(software_device.ROOT, "backing", "gpu", "software", "find_torch.py")


def find(*words, **settings):
    env = dict(os.environ, **settings)
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True,
                          timeout=60, check=True).stdout


def test_agrees_with_torch():
    found = json.loads(find(SCRIPT))
    told = json.loads(find("-c", "import torch, json; print(json.dumps([torch.__version__, "
                           "torch.version.cuda, torch._C._GLIBCXX_USE_CXX11_ABI, "
                           "torch.__path__[0]]))"))
    assert found["found"], found
    assert [found["version"], found["cuda"], found["cxx11_abi"]] == told[:3]
    assert found["site_packages"] == os.path.dirname(told[3])
    for key in ("include_dirs", "lib_dirs"):
        assert found[key] and all(map(os.path.isdir, found[key]))
    assert os.path.isfile(os.path.join(found["cuda_include_dir"], "cuda_runtime_api.h"))


def test_lines_say_the_same():
    found = json.loads(find(SCRIPT))
    lines = dict(line.split("\t", 1) for line in find(SCRIPT, "--lines").splitlines())
    assert lines["found"] == "True" and lines["version"] == found["version"]
    assert lines["include_dirs"].split(":") == found["include_dirs"]


def test_torch_is_not_imported():
    loaded = find("-X", "importtime", "-c", "import runpy, sys; sys.argv = ['x'];"
                  "runpy.run_path(%r, run_name='__main__'); print('torch' in sys.modules)" % SCRIPT)
    assert loaded.splitlines()[-1] == "False"


def test_no_torch(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")],
                   check=True, timeout=120)
    out = subprocess.run([str(tmp_path / "bare" / "bin" / "python"), "-I", SCRIPT],
                         capture_output=True, text=True, timeout=60, check=True).stdout
    found = json.loads(out)
    assert not found["found"] and "no torch in" in found["reason"]
