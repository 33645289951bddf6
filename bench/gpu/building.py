"""A build of Firn to measure: made on this machine, with what bench/gpu/pack.sh has collected where
the system has it not; else the one that was carried along."""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys

import machine
from results import Cut, Failed

# Beside the libraries and the command: what the steps run. Of the build folder; the last word says
# what it takes.
CORE = ("allocator/command/firn", "allocator/preload/libfirn_preload.so",
        "allocator/preload/libfirn_behind.so", "allocator/preload/firn-try-host",
        "backing/gpu/software/libcuda.so.1",
        "tests/backing/gpu/gpu_driver_conformance_test", "tests/backing/gpu/gpu_beliefs_test",
        "tests/gpu/firn_program_kernels.so", "tests/gpu/program_cycles", "tests/gpu/program_vector",
        "bench/gpu/driver_costs", "bench/gpu/mapping_load", "bench/gpu/access_load",
        "bench/preload/launch", "bench/preload/libno_kernel.so")
OF_TORCH = ("pytorch_plugin/libfirn_torch.so", "pytorch_plugin/firn-try-host",
            "bench/overhead/libcalls.so")
OF_TORCH_SOFTWARE = ("backing/gpu/software/torch_ops/libfirn_torch_ops.so",
                     "backing/gpu/software/cudart/libcudart.so.13",
                     "backing/gpu/software/nvml/libnvidia-ml.so.1")
FILES = ("pytorch_plugin/_build.py",)  # besides, of a build with torch


@dataclasses.dataclass
class Build:
    folder: pathlib.Path
    how: str

    def __truediv__(self, name):
        return self.folder / name

    def misfit(self, torch):
        """Why its plugin cannot be used with that torch; '' where it can."""
        if not all((self.folder / name).exists() for name in (*OF_TORCH, *FILES)):
            return f"{self.folder} was built without torch"
        text = (self.folder / FILES[0]).read_text()
        minor = re.search(r"torch_version\s*=\s*['\"](\d+\.\d+)", text)
        if not minor or not torch.startswith(minor[1] + "."):
            return f"built for torch {minor[1] if minor else '?'}, found {torch}"
        return ""


def missing(folder, with_torch):
    names = CORE + ((OF_TORCH + OF_TORCH_SOFTWARE + FILES) if with_torch else ())
    return [name for name in names if not (folder / name).exists()]


def environment():
    """With the tools of the Python that runs the suite first."""
    folders = [str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "/usr/bin:/bin")]
    return {**machine.without_firn(), "PATH": os.pathsep.join(folders)}


def jobs():
    """The compiler needs up to 2 GiB for a file that includes torch."""
    return max(1, min(len(os.sched_getaffinity(0)), machine.host_memory() >> 31))


def setup_words(root, folder, with_torch, wrap_mode):
    words = ["meson", "setup", str(folder), str(root), "-Dbuildtype=release", "-Db_ndebug=false",
             "-Dtests=true", "-Dwerror=false", f"--wrap-mode={wrap_mode}"]
    return words + ([f"-Dtorch_python={sys.executable}", "-Dtorch=enabled"] if with_torch
                    else ["-Dtorch=disabled"])


def build_here(step, root, folder, with_torch, wrap_mode="nodownload"):
    """A Build, or Failed or Cut."""
    tools = environment()
    for tool in ("meson", "ninja", "c++"):
        if not shutil.which(tool, path=tools["PATH"]):
            raise Failed(f"no {tool} on this machine")
    if not (folder / "build.ninja").exists():
        step.run(setup_words(root, folder, with_torch, wrap_mode), tools)
    names = CORE + ((OF_TORCH + OF_TORCH_SOFTWARE) if with_torch else ())
    step.run(["ninja", "-C", folder, "-j", jobs(), *names], tools)
    return Build(folder, "built here")


def starts(build):
    """Whether its programs run on this machine (its C library may be older): '' or why not."""
    try:
        done = subprocess.run([build / "allocator/command/firn", "--version"], capture_output=True,
                              text=True, timeout=60, env=machine.without_firn())
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["?"])[-1]


def given(folder, with_torch):
    lacking = missing(folder, with_torch)
    if lacking:
        raise Failed(f"{folder} lacks {', '.join(lacking)}")
    return Build(folder, "as given")


def carried(root, with_torch):
    """(the carried build, why it cannot be used)."""
    build = Build(root / "bench/carry/build", "carried")
    lacking = missing(build.folder, with_torch)
    if len(lacking) == len(CORE):
        return build, "there is none"
    return build, f"it lacks {', '.join(lacking)}" if lacking else starts(build)


def find(step, root, options, with_torch):
    """The build to measure, and in the row how it came about: made here, else carried, else made
    here without torch."""
    if options.build:
        return given(options.build, with_torch)
    folder, failed = root / options.build_folder, []
    try:
        return build_here(step, root, folder, with_torch, options.wrap_mode)
    except (Failed, Cut) as words:
        failed.append(f"to build here failed: {words}")
    build, why = carried(root, with_torch)
    if why:
        failed.append(f"the carried build: {why}")
        if not with_torch:
            raise Failed("; ".join(failed))
        build = build_here(step, root, folder.with_name(folder.name + "-without-torch"), False,
                           options.wrap_mode)
        build.how = "built here without torch"
    build.how += ": " + "; ".join(failed)
    step.row["why"] = build.how
    return build
