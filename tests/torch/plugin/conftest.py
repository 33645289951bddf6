"""The PyTorch plugin on the software GPU: each test runs Python in a process of its own.

The Firn under test: the one installed in .venv, or, with FIRN_TEST_BUILD, that build folder's (and
with FIRN_TEST_PYTHON another Python than .venv's: another torch).
"""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PYTHON = os.environ.get("FIRN_TEST_PYTHON") or str(ROOT / ".venv/bin/python")


def pytest_collection_modifyitems(items):
    """Quick is the first test of each file: some seconds each, for torch is loaded. (Not where
    everything leaves after each operator.)"""
    here = pathlib.Path(__file__).parent
    seen = set()
    for item in items:
        if here in item.path.parents and item.get_closest_marker("long") is None and \
                item.path not in seen and "adversarial" not in item.name:
            seen.add(item.path)
            item.add_marker(pytest.mark.quick)


def clean_environment():
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("FIRN_", "PYTORCH_", "CUDA_")) and name != "PYTHONPATH"}
    kept.pop("LD_PRELOAD", None)
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1"}


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def firn_environment():
    """Python with Firn in reach, but nothing that asks for it."""
    build = os.environ.get("FIRN_TEST_BUILD")
    if build:
        return {**clean_environment(),
                **load(ROOT / "pytorch_plugin/dev_site.py").make_site(build)}
    probe = subprocess.run([PYTHON, "-c", "import firn"], env=clean_environment(), cwd="/",
                           capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"{PYTHON} has no firn (bench/setup.sh installs it; FIRN_TEST_BUILD names a "
                    "build folder)")
    return clean_environment()


@pytest.fixture(scope="session")
def libraries(firn_environment):
    """{name: path} of what the package finds."""
    names = ("libfirn_preload.so", "libfirn_torch.so", "libfirn_torch_ops.so",
             "software/libcuda.so.1", "software/libcudart.so.13")
    done = subprocess.run(
        [PYTHON, "-c", "import sys; from firn._libraries import find_library\n"
                       "print('\\n'.join(str(find_library(name)) for name in sys.argv[1:]))",
         *names], env=firn_environment, cwd="/", capture_output=True, text=True, check=True)
    found = dict(zip(names, done.stdout.split("\n")))
    missing = [name for name, path in found.items() if path == "None"]
    if missing:
        pytest.skip("not built: " + ", ".join(missing))
    return found


@pytest.fixture(scope="session")
def software_environment(firn_environment, libraries):
    return {**firn_environment, "FIRN_DEVICE": "software", "FIRN_GPU_MEMORY": str(1 << 30),
            "LD_PRELOAD": "%s:%s" % (libraries["software/libcudart.so.13"],
                                     libraries["software/libcuda.so.1"])}


@pytest.fixture
def run(software_environment, tmp_path):
    """run(code, conf=..., **environment): the finished process; `conf` is
    PYTORCH_CUDA_ALLOC_CONF's."""

    def run_code(code, conf="backend:firn", status=0, **environment):
        settings = {**software_environment, **environment}
        if conf is not None:
            settings["PYTORCH_CUDA_ALLOC_CONF"] = conf
        done = subprocess.run([PYTHON, "-c", textwrap.dedent(code)], cwd=tmp_path, text=True,
                              env={name: str(value) for name, value in settings.items()},
                              capture_output=True, timeout=300, stdin=subprocess.DEVNULL)
        if status is not None:
            assert done.returncode == status, done.stdout + done.stderr
        return done

    return run_code


KERNEL = """
extern const unsigned add_one_params[][2];
const unsigned add_one_params[][2] = {{0, 8}, {8, 4}, {0, 0}};
void add_one(void** params, const unsigned grid[3], const unsigned block[3]);
void add_one(void** params, const unsigned grid[3], const unsigned block[3]) {
  float* at = *(float**)params[0];
  (void)grid, (void)block;
  for (int i = 0; i < *(int*)params[1]; ++i) at[i] += 1;
}
"""

@pytest.fixture
def kernel(tmp_path):
    """A module of the software GPU's: add_one(float*, int)."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = tmp_path / "kernel.c"
    source.write_text(KERNEL)
    path = tmp_path / "kernel.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", path, source], check=True)
    return {"KERNEL": str(path)}


def run_cases(environment, folder, cases, before, after="", conf=None):
    """{name: what fork_cases.py says of it}: pieces of Python that share the import of torch."""
    wanted = folder / ("cases-%s.json" % (conf is not None))
    wanted.write_text(json.dumps({"before": before, "after": after, "cases": {
        name: textwrap.dedent(code) for name, code in cases.items()}}))
    settings = dict(environment)
    if conf is not None:
        settings["PYTORCH_CUDA_ALLOC_CONF"] = conf
    script = str(ROOT / "tests/torch/plugin/fork_cases.py")
    done = subprocess.run([PYTHON, script, str(wanted)], env=settings, cwd=folder, text=True,
                          capture_output=True, timeout=1500, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}


sys.path.insert(0, str(pathlib.Path(__file__).parent))
