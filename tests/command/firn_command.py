"""Helpers of these tests, in a module of their own name: there are other conftest.py."""

import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def find_binary():
    named = os.environ.get("FIRN_TEST_BINARY")
    if named:
        return named
    for place in (".venv/bin/firn", "build/allocator/command/firn"):
        if (ROOT / place).exists():
            return str(ROOT / place)
    raise FileNotFoundError("no firn: build it first, or name it in FIRN_TEST_BINARY")


def clean_environment():
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("FIRN_", "PYTORCH_"))}
    kept.pop("LD_PRELOAD", None)
    return kept


def refused(result, *says):
    assert result.returncode == 2, (result.returncode, result.stdout, result.stderr)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("firn: ")
    for text in says:
        assert text in lines[0], lines[0]


def build_copies(folder):
    """A C program that allocates, copies, compares and frees: words say how."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source = pathlib.Path(__file__).with_name("copies.c")
    subprocess.run([compiler, "-O1", "-o", folder / "copies", source, "-ldl"], check=True)
    return str(folder / "copies")
