"""The package as pip sees it: what is in the wheel and the sdist, installing it, again, into a path
with spaces, and removing it without a trace.

The wheel is made from the build folder (FIRN_TEST_BUILD, else build/), where all is compiled.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

import script_runs

ROOT = script_runs.ROOT
PYTHON = ROOT / ".venv/bin/python"
BUILD = ROOT / os.environ.get("FIRN_TEST_BUILD", "build")


def environment(**more):
    # (pip finds the compiled libraries by FIRN_TEST_BUILD alone.)
    kept = {name: value for name, value in script_runs.clean_environment().items()
            if name not in ("FIRN_BUILD", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INDEX": "1",
            "PATH": "%s:%s" % (ROOT / ".venv/bin", os.environ["PATH"]),
            "NINJA": str(ROOT / ".venv/bin/ninja"), **more}


def command(*words, status=0, cwd="/", **more):
    done = subprocess.run([str(word) for word in words], env=environment(**more), cwd=cwd,
                          text=True, capture_output=True, timeout=1800, stdin=subprocess.DEVNULL)
    if status is not None:
        assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    if not (BUILD / "build.ninja").exists():
        pytest.skip(f"{BUILD} is not a build folder")
    shown = command(ROOT / ".venv/bin/meson", "introspect", "--buildoptions", BUILD).stdout
    options = {option["name"]: option["value"] for option in json.loads(shown)}
    # As it is configured, or everything would be compiled again. (This pip takes one setup-args.)
    python = options["torch_python"] if "/" in options["torch_python"] else PYTHON
    folder = tmp_path_factory.mktemp("wheel")
    command(python, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "-w", folder,
            f"--config-settings=build-dir={BUILD}",
            f"--config-settings=setup-args=-Dtests={str(options['tests']).lower()}", ROOT)
    (path,) = folder.iterdir()
    return path


def files_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def make_environment(folder):
    """A virtual environment that has .venv's torch."""
    command(PYTHON, "-m", "venv", "--without-pip", folder)
    python = folder / "bin/python"
    packages = pathlib.Path(command(python, "-c", "import sysconfig\n"
                                    "print(sysconfig.get_path('purelib'))").stdout.strip())
    theirs = command(PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    (packages / "torchs.pth").write_text(theirs.stdout)
    return python, packages


def pip(python, *words, **more):
    return command(PYTHON, "-m", "pip", "--python", python, *words, **more)


def install(python, wheel, how="--ignore-installed"):  # .venv may have a Firn too
    pip(python, "install", "--no-deps", how, wheel)


def test_the_wheel_is_for_every_python(wheel):
    assert re.fullmatch(r"firn-[\d.]+-py3-none-linux_\w+\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = {re.sub(r"^firn-[\d.]+\.(data|dist-info)", r"\1", name)
                 for name in archive.namelist()}
    package = ROOT / "pytorch_plugin/firn"
    sources = {"data/purelib/firn/" + str(path.relative_to(package))
               for pattern in ("*.py", "py.typed") for path in package.rglob(pattern)}
    minor = re.match(r"\d+\.\d+", command(PYTHON, "-c", "import importlib.metadata as m\n"
                                          "print(m.version('torch'))").stdout).group()
    libraries = {"data/purelib/firn/lib/" + name
                 for name in (f"libfirn_torch-{minor}.so", f"libfirn_torch_ops-{minor}.so",
                              "libfirn_preload.so", "libfirn_behind.so", "software/libcuda.so.1",
                              "software/libcudart.so.13", "software/libnccl.so.2",
                              "software/libnvidia-ml.so.1", "firn-try-host")}
    assert names == sources | libraries | {
        "data/purelib/firn/_build.py", "data/purelib/firn.pth", "data/scripts/firn",
        "dist-info/METADATA", "dist-info/RECORD", "dist-info/WHEEL", "dist-info/entry_points.txt",
        "dist-info/licenses/LICENSE"}


def test_installed_used_again_and_removed_without_a_trace(wheel, tmp_path):
    python, packages = make_environment(tmp_path / "an environment with spaces")
    prefix = python.parents[1]
    before = files_under(prefix)
    install(python, wheel)
    installed = files_under(prefix)
    assert "bin/firn" in installed and any(name.endswith("/firn.pth") for name in installed)
    assert command(prefix / "bin/firn", "--version").stdout.startswith("firn ")
    install(python, wheel, "--force-reinstall")
    assert files_under(prefix) == installed
    doctor = json.loads(command(prefix / "bin/firn", "doctor", "--json", status=None).stdout)
    assert doctor["torch"]["usable"] and doctor["torch"]["version"], doctor["torch"]
    # The loader's list of preloaded libraries cannot hold a space: those of the build folder.
    software = BUILD / "backing/gpu/software"
    done = command(
        python, "-c", "import torch, firn, sys\n"
        "x = torch.ones(1 << 20, device='cuda')\n"
        "assert x.sum().item() == 1 << 20 and firn.enabled()\n"
        "print(firn.__file__)\n"
        "print([line.split(maxsplit=5)[5] for line in open('/proc/self/maps')\n"
        "       if 'libfirn_torch' in line][0])\n"
        "import firn.simulate_plot, firn._tables, firn.relay.loop, firn.relay.split",
        PYTORCH_CUDA_ALLOC_CONF="backend:firn", FIRN_DEVICE="software", FIRN_GPU_MEMORY="256MiB",
        LD_PRELOAD=f"{software}/cudart/libcudart.so.13:{software}/libcuda.so.1")
    assert done.stderr == ""
    assert [line.startswith(str(packages / "firn")) for line in done.stdout.split("\n") if line] \
        == [True, True], done.stdout
    assert (packages / "firn/__pycache__").is_dir()
    pip(python, "uninstall", "-y", "firn")
    assert files_under(prefix) == before


def test_the_software_gpu_refuses_a_path_that_cannot_be_preloaded(wheel, tmp_path):
    python, _ = make_environment(tmp_path / "a b")
    install(python, wheel)
    done = command(python.parent / "firn", "run", "--device", "software", "--", "true", status=2)
    (line,) = done.stderr.splitlines()
    assert "LD_PRELOAD cannot hold the path" in line


def test_the_sdist_is_what_git_has(tmp_path):
    git = subprocess.run(["git", "ls-tree", "-r", "--name-only", "HEAD"], cwd=ROOT, text=True,
                         capture_output=True)
    if git.returncode != 0:
        pytest.skip("not a git checkout")
    build = tmp_path / "build"
    command(PYTHON, "-c", "import sys, firn_build\nfirn_build.build_sdist(sys.argv[1], {\n"
            "    'build-dir': sys.argv[2], 'setup-args': sys.argv[3]})", tmp_path, build,
            f"-Dtorch_python={PYTHON}", cwd=ROOT, PYTHONPATH=ROOT / "pytorch_plugin")
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {member.name.split("/", 1)[1] for member in archive if member.isfile()}
        archive.extractall(tmp_path / "source")
    assert names == set(git.stdout.split("\n")) - {""} | {"PKG-INFO"}
    (source,) = (tmp_path / "source").iterdir()
    command(ROOT / ".venv/bin/meson", "setup", tmp_path / "again", source, "-Dtests=true",
            "-Dtorch=enabled", f"-Dtorch_python={PYTHON}")


def test_editable_installs_are_refused(tmp_path):
    python, _ = make_environment(tmp_path / "environment")
    before = files_under(tmp_path)
    done = pip(python, "install", "--no-build-isolation", "--no-deps", "-e", ROOT, status=1)
    assert re.search("firn: no editable installs: .*dev_site.py", done.stdout + done.stderr)
    assert files_under(tmp_path) == before


def test_without_torch_the_flag_is_named(tmp_path):
    bare = tmp_path / "bare"
    command(sys.executable, "-m", "venv", "--without-pip", bare)
    done = command(ROOT / ".venv/bin/meson", "setup", tmp_path / "build", ROOT, "-Dtorch=enabled",
                   f"-Dtorch_python={bare}/bin/python", status=1)
    (line,) = [line for line in done.stdout.splitlines() if "ERROR" in line]
    assert "no torch in" in line and "--config-settings=setup-args=-Dtorch_python=" in line
