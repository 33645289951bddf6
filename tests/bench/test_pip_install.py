"""bench/pip_install.sh: packages by uv, told what pip is configured to; by pip where uv fails."""

import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
UV = ROOT / ".venv/bin/uv"


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("venv") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder


@pytest.fixture
def venv(empty, tmp_path):
    """An environment, and a folder that holds the one package `little`."""
    shutil.copytree(empty, tmp_path / "venv", symlinks=True)
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
    assert not list(venv.glob("uv-cache*"))


def stand_in(venv, script):
    """A `uv` of this environment's that writes its own environment down, and then does `script`."""
    uv = venv / "bin/uv"
    uv.write_text(f"#!/bin/sh\nenv >{venv}/told\n{script}\n")
    uv.chmod(0o755)


def test_settings_count_as_pip_counts_them(venv):
    stand_in(venv, "exit 0")
    (venv / "pip.conf").write_text(
        "[global]\nindex-url = https://global\ntrusted-host = one\n"
        "[install]\nindex-url = https://install\nextra-index-url = https://more\n"
        "[wheel]\nno-index = true\n")
    done = install(venv, "little", PIP_CONFIG_FILE=str(venv / "pip.conf"), PIP_TIMEOUT="7.5")
    assert done.returncode == 0, done.stdout
    told = dict(line.split("=", 1) for line in (venv / "told").read_text().splitlines()
                if line.startswith("UV_"))
    assert told["UV_DEFAULT_INDEX"] == "https://install" and told["UV_INDEX"] == "https://more"
    assert told["UV_INSECURE_HOST"] == "one" and told["UV_HTTP_TIMEOUT"] == "8"
    assert "UV_NO_INDEX" not in told
    install(venv, "little", PIP_CONFIG_FILE=str(venv / "pip.conf"),
            PIP_INDEX_URL='https://env/"quoted"', UV_INSECURE_HOST="mine")
    told = (venv / "told").read_text().splitlines()
    assert 'UV_DEFAULT_INDEX=https://env/"quoted"' in told and "UV_INSECURE_HOST=mine" in told


def test_what_uv_has_no_like_of_is_pips(venv):
    stand_in(venv, "exit 0")
    constraint = venv / "constraint"
    constraint.write_text("little==9\n")
    done = install(venv, "little", PIP_CONSTRAINT=str(constraint))
    assert done.returncode != 0 and "little==9" in done.stdout, done.stdout
    assert not (venv / "told").exists()


def test_who_is_interrupted_installs_nothing_more(venv):
    stand_in(venv, "mkdir $UV_CACHE_DIR; kill -INT $PPID; exit 130")
    done = install(venv, "little==1.5")
    assert done.returncode == 130 and "pip" not in done.stdout and not found(venv)
    assert not list(venv.glob("uv-cache*"))


def test_by_pip_where_uv_fails(venv):
    stand_in(venv, "echo no network >&2; exit 2")
    done = install(venv, "little==1.5")
    assert done.returncode == 0 and "no network" in done.stdout, done.stdout
    assert "Successfully installed little-1.5" in done.stdout and found(venv)


def test_neither(venv):
    done = install(venv, "little==1.6")
    assert done.returncode != 0 and "No matching distribution found for little==1.6" in done.stdout
    assert not list(venv.glob("uv-cache*")) and not found(venv)


def test_without_words():
    done = subprocess.run(["bash", ROOT / "bench/pip_install.sh"], text=True, capture_output=True)
    assert done.returncode == 2 and "bench/pip_install.sh PYTHON OPTION..." in done.stderr
