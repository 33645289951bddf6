"""The line in firn.pth in a virtual environment of its own: what it does to the environment, with
what else an interpreter may be started with, and that it does nothing elsewhere."""

import json
import os
import pathlib
import shutil
import subprocess
import zipapp

import pytest

from conftest import PYTHON, ROOT, load

SHOW = ("import json, os, sys; print(json.dumps([{name: value for name, value in os.environ.items()"
        " if name.startswith(('PYTORCH', 'FIRN_CONF'))}, sorted(sys.modules)]))")
WORDS = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64,backend:firn,firn_host:1GiB"}
TAKEN = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
         "FIRN_CONF": "backend:firn,firn_host:1GiB"}


class Environment:
    """A virtual environment with .venv's torch, and with Firn as pip would install it."""

    def __init__(self, folder, settings):
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(folder)], check=True)
        self.python = str(folder / "bin/python")
        self.settings = {name: value for name, value in settings.items() if name != "PYTHONPATH"}
        self.packages = pathlib.Path(self.print_paths(self.python))
        theirs = self.print_paths(PYTHON)
        (self.packages / "torchs.pth").write_text(theirs + "\n")
        sources = ROOT / "pytorch_plugin/firn"
        shutil.copytree(sources, self.packages / "firn",
                        ignore=shutil.ignore_patterns("__pycache__", "firn.pth"))
        shutil.copy(sources / "firn.pth", self.packages)
        dev_site = load(ROOT / "pytorch_plugin/dev_site.py")
        dev_site.write(str(self.packages / "firn-0.1.0.dist-info/METADATA"), dev_site.METADATA)
        dev_site.write(str(self.packages / "firn-0.1.0.dist-info/entry_points.txt"),
                       dev_site.ENTRY_POINTS)

    def print_paths(self, python):
        return subprocess.run([python, "-c", "import sysconfig\n"
                               "print(sysconfig.get_path('purelib'))"], env=self.settings,
                              capture_output=True, text=True, check=True).stdout.strip()

    def start(self, *words, python=None, status=0, **environment):
        settings = {**self.settings, **{name: str(value) for name, value in environment.items()}}
        done = subprocess.run([str(python or self.python), *map(str, words)], env=settings,
                              text=True, capture_output=True, cwd="/", timeout=300,
                              stdin=subprocess.DEVNULL)
        assert done.returncode == status, done.stdout + done.stderr
        assert done.stderr == "" or status != 0, done.stderr
        return done.stdout

    def after(self, *options, **environment):
        """(environment, modules) that a program started so finds."""
        return json.loads(self.start(*options, "-c", SHOW, **environment))


@pytest.fixture(scope="module")
def installed(tmp_path_factory, software_environment, libraries):
    settings = {name: value for name, value in software_environment.items()
                if name != "LD_PRELOAD"}
    if "FIRN_BUILD" not in settings:  # installed in .venv
        settings["FIRN_LIB"] = os.path.dirname(libraries["libfirn_torch.so"])
    return Environment(tmp_path_factory.mktemp("line") / "an environment", settings)


def test_the_line():
    line = (ROOT / "pytorch_plugin/firn/firn.pth").read_text()
    assert line.startswith("import os; ") and line.count("\n") == 1  # what site executes


@pytest.mark.parametrize("environment", [
    {}, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": "backend:native"},
    {"pytorch_cuda_alloc_conf": "backend:firn"}])
def test_without_words_nothing_is_imported_or_changed(installed, environment):
    """What a process that never asks for Firn pays: a line that finds nothing."""
    line = installed.packages / "firn.pth"
    found = installed.after(**environment)
    away = line.rename(line.with_suffix(".away"))
    try:
        without = installed.after(**environment)
    finally:
        away.rename(line)
    assert found == without
    assert found[0] == {name: value for name, value in environment.items()
                        if name.startswith("PYTORCH")}


def test_words_of_another_program_are_left(installed):
    """"firn" in a value that does not ask for it."""
    for conf in ("firn_budget:1GiB", "backend:Firn", "BACKEND:firn", "backend:firns", "firn",
                 "roundup_power2_divisions:[firn]"):
        found, modules = installed.after(PYTORCH_CUDA_ALLOC_CONF=conf)
        assert found == {"PYTORCH_CUDA_ALLOC_CONF": conf}
        assert not {"torch", "ctypes", "json.firn"} & set(modules)


@pytest.mark.parametrize("options", [(), ("-E",), ("-I",), ("-s",), ("-B", "-O"), ("-X", "utf8")])
def test_words_are_taken(installed, options):
    found, modules = installed.after(*options, **WORDS)
    assert found == TAKEN
    assert "firn._startup" in modules and "torch" not in modules and "ctypes" not in modules


def test_without_site_they_stay(installed):
    found, modules = installed.after("-S", **WORDS)
    assert found == WORDS and "firn" not in modules


def test_both_variables(installed):
    for cuda, other, left in (
            ("backend:firn,a:1", "firn_budget:1GiB,b:2",
             {"PYTORCH_CUDA_ALLOC_CONF": "a:1", "PYTORCH_ALLOC_CONF": "b:2"}),
            (" firn_budget:1GiB , ", "backend:firn", {}),
            ("a:1", " backend : firn ,firn_budget:1GiB", {"PYTORCH_CUDA_ALLOC_CONF": "a:1"})):
        found, _ = installed.after(PYTORCH_CUDA_ALLOC_CONF=cuda, PYTORCH_ALLOC_CONF=other)
        assert found == {**left, "FIRN_CONF": "backend:firn,firn_budget:1GiB"}


def test_children_nested_environments_and_archives(installed, tmp_path):
    child = "import subprocess, sys; sys.stdout.write(subprocess.run(sys.argv[1:], check=True, " \
            "capture_output=True, text=True).stdout)"
    # A child, and a child of an environment without Firn: both find what was taken.
    bare = tmp_path / "bare"
    subprocess.run([installed.python, "-m", "venv", "--without-pip", str(bare)], check=True,
                   env=installed.settings)
    for python in (installed.python, bare / "bin/python"):
        assert json.loads(installed.start("-c", child, python, "-c", SHOW, **WORDS))[0] == TAKEN
    # A child that is asked anew.
    again = json.loads(installed.start("-c", child, "env", "PYTORCH_ALLOC_CONF=backend:firn",
                                       installed.python, "-c", SHOW, **WORDS))[0]
    assert again == {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64", "FIRN_CONF": "backend:firn"}
    (tmp_path / "program").mkdir()
    (tmp_path / "program/__main__.py").write_text(SHOW)
    zipapp.create_archive(tmp_path / "program", tmp_path / "program.pyz")
    assert json.loads(installed.start(tmp_path / "program.pyz", **WORDS))[0] == TAKEN


def test_beside_other_start_up_files(installed, tmp_path):
    """Other people's lines before and after, and a sitecustomize."""
    # (In a virtual environment Python runs all lines twice.)
    seen = "import os; os.environ.setdefault('SEEN_%s', str('FIRN_CONF' in os.environ))\n"
    lines = {"a.pth": seen % "A", "z.pth": seen % "Z"}
    (tmp_path / "sitecustomize.py").write_text(
        "import os; os.environ['PYTORCH_SEEN'] = os.environ['SEEN_A'] + os.environ['SEEN_Z'] + "
        "str('FIRN_CONF' in os.environ)\n")
    for name, text in lines.items():
        (installed.packages / name).write_text(text)
    try:
        found, _ = installed.after(**WORDS, PYTHONPATH=tmp_path)
    finally:
        for name in lines:
            (installed.packages / name).unlink()
    assert found == {**TAKEN, "PYTORCH_SEEN": "FalseTrueTrue"}


TRAIN = """
import torch, firn
assert firn.enabled() and torch.cuda.get_allocator_backend() == "firn"
assert torch.ones(1000, device="cuda").sum().item() == 1000
assert firn.stats()["devices"][0]["budget_bytes"] == 64 << 20
print("trained")
"""
ASKED = {"PYTORCH_CUDA_ALLOC_CONF": "backend:firn,firn_budget:64MiB"}


@pytest.mark.parametrize("way", ["line", "-S", "PYTHONPATH", "torch before the line"])
def test_torch_finds_firn(installed, libraries, tmp_path, way):
    """Also where the line did not run, or too late: torch's settings are read when CUDA starts."""
    words, environment, python = [], {}, installed.python
    early = installed.packages / "a.pth"
    if way == "-S":
        words = ["-S"]
        environment["PYTHONPATH"] = "%s:%s" % (installed.packages, installed.print_paths(PYTHON))
    elif way == "PYTHONPATH":  # as of pip install --target
        subprocess.run([PYTHON, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
        python = tmp_path / "bare/bin/python"
        environment["PYTHONPATH"] = "%s:%s" % (installed.packages, installed.print_paths(PYTHON))
    elif way == "torch before the line":
        # (Its path is not there yet: what is in this folder comes first.)
        early.write_text("import sys; sys.path.append(%r); import torch\n"
                         % installed.print_paths(PYTHON))
    try:
        out = installed.start(
            *words, "-c", TRAIN, python=python, **environment, **ASKED, LD_PRELOAD="%s:%s" % (
                libraries["software/libcudart.so.13"], libraries["software/libcuda.so.1"]))
    finally:
        early.unlink(missing_ok=True)
    assert out.strip() == "trained"
