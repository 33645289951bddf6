"""The software device for a Python process: where its libraries are, and how to switch it on.

Libraries: FIRN_LIB (a folder that has libfirn_torch_ops-*.so, and software/libcuda.so.1 and
software/libcudart.so.13), FIRN_BUILD (a build folder), else the newest one of this repository.
"""

import ctypes
import glob
import os

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))


def libraries():
    """{"cuda": path, "cudart": path, "ops": path}, or None where they are not built."""
    candidates = []
    folder = os.environ.get("FIRN_LIB")
    if folder:
        candidates.append({"cuda": os.path.join(folder, "software", "libcuda.so.1"),
                           "cudart": os.path.join(folder, "software", "libcudart.so.13"),
                           "ops": next(iter(glob.glob(
                               os.path.join(folder, "libfirn_torch_ops-*.so"))), "")})
    else:
        named = os.environ.get("FIRN_BUILD")
        for build in [named] if named else glob.glob(os.path.join(ROOT, "build*")):
            software = os.path.join(build, "backing", "gpu", "software")
            candidates.append({
                "cuda": os.path.join(software, "libcuda.so.1"),
                "cudart": os.path.join(software, "cudart", "libcudart.so.13"),
                "ops": os.path.join(software, "torch_ops", "libfirn_torch_ops.so")})
    found = [paths for paths in candidates if all(map(os.path.exists, paths.values()))]
    return max(found, key=lambda paths: os.path.getmtime(paths["ops"])) if found else None


def environment(**settings):
    """The environment of a process on the software device."""
    paths = libraries()
    env = {name: value for name, value in os.environ.items()
           if name not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUDA_VISIBLE_DEVICES")}
    env.update(LD_PRELOAD=paths["cudart"] + ":" + paths["cuda"], FIRN_TORCH_OPS=paths["ops"],
               TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    env.update(settings)
    return env


def start():
    """In such a process: puts the CPU's kernels in the place of CUDA's."""
    import torch  # noqa: F401  its libraries come first
    library = ctypes.CDLL(os.environ["FIRN_TORCH_OPS"])
    library.firn_torch_ops_error.restype = ctypes.c_char_p
    if library.firn_torch_ops_start() != 0:
        raise RuntimeError(library.firn_torch_ops_error().decode())
