"""What bench/gpu/pack.sh collects: enough to build Firn, and to run it, where there are neither the
packages nor a network, and small enough to be carried."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

from test_gpu import BUILD, ROOT, built, rows, run  # noqa: F401

MOST_BYTES = 60 << 20
TORCH_PYTHON = ROOT / ".venv/bin/python"
# Hides the packages' files, and the network. Empty folders, and files that nobody can read. (Python
# runs with libz.so itself, by which meson finds zlib.)
HIDE = """
for folder in /usr/include/{fmt,nlohmann,CLI,liburing,gtest,gmock} /usr/src/googletest \\
              /usr/lib/*/pkgconfig /usr/share/pkgconfig /usr/lib/*/cmake; do
  [ ! -d "$folder" ] || mount -t tmpfs none "$folder" || exit 88
done
for file in /usr/include/{xxhash,xxh3,liburing,zlib,zconf}.h /usr/bin/{pkg-config,pkgconf} \\
            /usr/lib/*/lib{uring,fmt,gtest,gtest_main,xxhash}.{a,so} /usr/lib/*/libz.a; do
  [ ! -e "$file" ] || mount --bind /dev/null "$(readlink -f "$file")" || exit 88
done
exec "$@"
"""
# Of each library something that is compiled or linked with it.
TARGETS = ["tests/backing/gpu/gpu_driver_conformance_test", "bench/gpu/driver_costs",
           "bench/gpu/mapping_load", "bench/store/store_bench",
           "allocator/command/firn.p/meson-generated_firn-unity4.cpp.o",
           "allocator/report/libfirn_report.a"]


def hidden(*words):
    return ["unshare", "--map-root-user", "--mount", "--net", "bash", "-c", HIDE, "hide",
            *map(str, words)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """This checkout as git has it, with what pack.sh collected."""
    where = tmp_path_factory.mktemp("carried") / "firn"
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others",
                            "--exclude-standard"], stdout=subprocess.PIPE)
    if names.returncode != 0:
        pytest.skip("not a git checkout")
    for name in filter(None, names.stdout.decode().split("\0")):
        if (ROOT / name).exists():
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, where / name, follow_symlinks=False)
    subprocess.run(["git", "init", "-q", str(where)], check=True)
    # (What a machine may lack that tests.)
    if not pathlib.Path("/usr/src/googletest").exists():
        pytest.skip("no Google Test sources here")
    packed = run("bash", where / "bench/gpu/pack.sh", "--build", BUILD)
    assert packed.returncode == 0, packed.stdout + packed.stderr
    return where, packed.stdout


def test_the_carried_tree_is_small(checkout):
    where, said = checkout
    files = [path for path in where.rglob("*") if path.is_file() and ".git" not in path.parts]
    assert sum(path.lstat().st_size for path in files) < MOST_BYTES
    assert re.search(r"checkout [\d.]+ MiB, bench/carry [\d.]+ MiB", said)


def test_more_than_that_is_refused(checkout):
    where, _ = checkout
    big = where / "big"
    with open(big, "wb") as file:
        file.truncate(MOST_BYTES)
    refused = run("bash", where / "bench/gpu/pack.sh", "--no-build", "--no-kernels")
    big.unlink()
    assert refused.returncode == 1 and "more than 60 MiB" in refused.stderr
    assert (where / "bench/carry/build/allocator/command/firn").exists(), "the old one is gone"


def test_the_carried_build_runs(checkout, tmp_path):
    where, _ = checkout
    done = run("bash", where / "bench/gpu/run.sh", "--device", "software", "--build",
               where / "bench/carry/build", "--out", tmp_path, "--only", "conformance", "--only",
               "cycles", "--only", "costs-calls", "--only", "asked", "--only", "costs-mapping",
               environment={"FIRN_PYTHON": str(TORCH_PYTHON)})
    told = rows(json.loads((tmp_path / "results.json").read_text()))
    assert done.returncode == 0, told
    assert {row["status"] for row in told.values()} == {"passed"}


def test_a_build_that_fails_falls_back_on_the_carried_one(checkout, tmp_path):
    where, _ = checkout
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "c++").write_text("#!/bin/sh\nexit 1\n")
    (tools / "c++").chmod(0o755)
    done = run("bash", where / "bench/gpu/run.sh", "--device", "software", "--out", tmp_path,
               "--only", "conformance",
               environment={"FIRN_PYTHON": str(TORCH_PYTHON), "CXX": str(tools / "c++")})
    told = rows(json.loads((tmp_path / "results.json").read_text()))
    assert done.returncode == 0, told
    assert told["build"]["figures"]["build"]["how"].startswith("carried: to build here failed: ")
    assert told["conformance"]["status"] == "passed"


@pytest.mark.long  # (it compiles for minutes)
def test_builds_without_the_packages_and_without_a_network(checkout):
    where, _ = checkout
    if subprocess.run(hidden("true"), capture_output=True).returncode != 0:
        pytest.skip("no namespaces here (unshare): nothing can be hidden")
    out = where / "build-hidden"
    environment = {"PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"}
    assert run(*hidden("bash", "-c", "echo '#include <fmt/core.h>' | c++ -fsyntax-only -x c++ -")
               ).returncode != 0, "the packages are not hidden"
    set_up = run(*hidden("meson", "setup", out, where, "-Dbuildtype=release", "-Dtests=true",
                         "-Dtorch=disabled", "-Dwerror=false", "-Doptimization=0",
                         "--wrap-mode=nodownload", "--force-fallback-for=zlib"),
                 environment=environment)
    assert set_up.returncode == 0, set_up.stdout[-3000:]
    made = run(*hidden("ninja", "-C", out, *TARGETS), environment=environment)
    assert made.returncode == 0, made.stdout[-3000:]
    software = BUILD / "backing/gpu/software/libcuda.so.1"
    tested = run(out / TARGETS[0], environment={"FIRN_TEST_DRIVER": str(software)})
    assert tested.returncode == 0, tested.stdout[-2000:]
    told = run("ldd", out / "bench/store/store_bench").stdout
    assert "liburing" not in told and "libfmt" not in told
