"""Peers from PyPI, each in a folder of its own below build/peers, so that none disturbs .venv. What
cannot be installed, built or started is left out, with the reason."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import sys

from firn_bench.context import BUILD, ROOT, Context, LeftOut

FOLDER = BUILD / "peers"
# The last RMM whose pool is in its headers: a later one brings a CUDA runtime of its own, which
# does not know the GPU in software.
RMM = ("librmm-cu13==25.10.0", "rapids-logger==0.1.19")
DEEPSPEED = ("deepspeed==0.19.8", "einops==0.8.1", "hjson==3.1.0", "msgpack==1.1.2",
             "psutil==7.1.3", "py-cpuinfo==9.0.0")
SECONDS = 900


def _folder(packages: tuple[str, ...]) -> pathlib.Path:
    return FOLDER / re.sub(r"[^\w.]+", "-", packages[0])


def _install(context: Context, name: str, packages: tuple[str, ...]) -> pathlib.Path:
    """The folder with them."""
    folder = _folder(packages)
    if not (folder / "installed").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        context.run([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "-q",
                     "--no-deps", "--no-build-isolation", "--retries", "1", "--timeout", "30",
                     "--upgrade", "--target", folder, *packages], SECONDS)
        (folder / "installed").write_text(name + "\n")
    return folder


def rmm_pool(context: Context) -> pathlib.Path:
    """The library made of bench/overhead/rmm_pool.cpp."""
    folder = _install(context, "RMM", RMM)
    library, source = folder / "librmm_pool.so", ROOT / "bench/overhead/rmm_pool.cpp"
    if library.exists() and library.stat().st_mtime > source.stat().st_mtime:
        return library
    nvidia = importlib.util.find_spec("nvidia")
    cuda = next((folder for root in (nvidia.submodule_search_locations or () if nvidia else ())
                 for folder in pathlib.Path(root).glob("cu*")
                 if (folder / "include/cuda_runtime_api.h").exists()), None)
    if cuda is None:
        raise LeftOut("no headers of the CUDA runtime beside torch")
    rmm, logger = folder / "librmm", folder / "rapids_logger"
    context.run(["g++", "-std=c++20", "-O2", "-fPIC", "-shared", "-w",
                 "-DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE",
                 *(f"-I{each}" for each in (rmm / "include", rmm / "include/rapids",
                                            logger / "include", cuda / "include")),
                 source, "-o", library, f"-L{rmm / 'lib64'}", "-lrmm", f"-L{logger / 'lib64'}",
                 "-lrapids_logger", next((cuda / "lib").glob("libcudart.so.*")),
                 f"-Wl,-rpath,{rmm / 'lib64'}:{logger / 'lib64'}"], SECONDS)
    return library


def deepspeed(context: Context) -> dict[str, str]:
    """The environment in which Python finds DeepSpeed."""
    return {"PYTHONPATH": str(_install(context, "DeepSpeed", DEEPSPEED))}


def deepnvme(context: Context) -> dict[str, str]:
    """The environment in which Python finds DeepSpeed, its aio operator built (which takes minutes,
    once)."""
    built = _folder(DEEPSPEED) / "built"
    if context.quick and not any(built.rglob("*.so")):
        raise LeftOut("its operator is not built yet (bench/run.sh store builds it)")
    folder = _install(context, "DeepSpeed", DEEPSPEED)
    environment = {"PYTHONPATH": str(folder), "DS_ACCELERATOR": "cpu",
                   "TORCH_EXTENSIONS_DIR": str(built),
                   "MAX_JOBS": str(os.cpu_count() or 1)}
    context.run([sys.executable, ROOT / "bench/store/deepnvme.py"], SECONDS, **environment)
    return environment
