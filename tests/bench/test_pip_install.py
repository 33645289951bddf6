"""bench/pip_install.sh: packages by uv, told what pip is configured to; by pip where uv fails."""

import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
UV = ROOT / ".venv/bin/uv"


@pytest.fixture
def venv(tmp_path):
    """An environment, and a folder that holds the one package `little`."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    folder = tmp_path / "links with a blank"
    folder.mkdir()
    info = "little-1.5.dist-info"
    with zipfile.ZipFile(folder / "little-1.5-py3-none-any.whl", "w") as wheel:
        wheel.writestr("little.py", "size = 1\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: little\nVersion: 1.5\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: firn\n"
                                        "Root-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return tmp_path / "venv"


def install(venv, *words, **more):
    settings = {name: value for name, value in os.environ.items()
                if not name.startswith(("PIP_", "UV_"))}
    config = venv.parent / "pip.conf"
    config.write_text(f"[global]\nno-index = true\n[install]\nfind-links =\n"
                      f"    {(venv.parent / 'links with a blank').as_uri()}\n")
    return subprocess.run(["bash", ROOT / "bench/pip_install.sh", venv / "bin/python", *words],
                          env={**settings, "PIP_CONFIG_FILE": str(config), **more}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def found(venv):
    return subprocess.run([venv / "bin/python", "-c", "import little; print(little.__cached__)"],
                          text=True, capture_output=True,
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}).stdout.strip()


def test_by_uv(venv):
    if not UV.exists():
        pytest.skip("no uv in .venv")
    done = install(venv, "little==1.5")
    assert done.returncode == 0 and "Installed 1 package" in done.stdout, done.stdout
    assert pathlib.Path(found(venv)).exists(), "not compiled: each program's start would do it"
    assert not (venv / "uv-cache").exists()


def test_by_pip_where_uv_fails(venv):
    uv = venv / "bin/uv"
    uv.write_text("#!/bin/sh\necho no network >&2\nexit 2\n")
    uv.chmod(0o755)
    done = install(venv, "little==1.5")
    assert done.returncode == 0 and "no network" in done.stdout, done.stdout
    assert "Successfully installed little-1.5" in done.stdout and found(venv)


def test_neither(venv):
    done = install(venv, "little==1.6")
    assert done.returncode != 0 and "No matching distribution found for little==1.6" in done.stdout
    assert not (venv / "uv-cache").exists() and not found(venv)


def test_without_words():
    done = subprocess.run(["bash", ROOT / "bench/pip_install.sh"], text=True, capture_output=True)
    assert done.returncode == 2 and "bench/pip_install.sh PYTHON OPTION..." in done.stderr
