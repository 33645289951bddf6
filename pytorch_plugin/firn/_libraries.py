"""Where Firn's libraries are, and the functions of libfirn_torch.so.

Two of them stand on torch's binary interface, which changes with every minor release: the package
holds libfirn_torch-2.11.so for torch 2.11, and may hold one for each of several releases.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

_BUILT = {  # a file of the package's lib/: its path in a build folder
    "libfirn_preload.so": "allocator/preload/libfirn_preload.so",
    "libfirn_torch.so": "pytorch_plugin/libfirn_torch.so",
    "libfirn_torch_ops.so": "backing/gpu/software/torch_ops/libfirn_torch_ops.so",
    "software/libcuda.so.1": "backing/gpu/software/libcuda.so.1",
    "software/libcudart.so.13": "backing/gpu/software/cudart/libcudart.so.13",
    "software/libnccl.so.2": "backing/gpu/software/nccl/libnccl.so.2",
}
_FOR_TORCH = ("libfirn_torch.so", "libfirn_torch_ops.so")


def _minor(version: str) -> str:
    """'2.11' for '2.11.0+cu130'; '' for what is not a version."""
    match = re.match(r"\d+\.\d+", version)
    return match.group() if match else ""


def _assigned(path: str, name: str) -> str:
    """The text that a Python file assigns to a name; '' if it does not."""
    try:
        with open(path, encoding="utf-8") as file:
            match = re.search(r"^%s\s*=\s*['\"]([^'\"]*)" % name, file.read(), re.M)
    except OSError:
        return ""
    return match.group(1) if match else ""


def torch_version() -> str:
    """The version of the torch that is loaded, or else would be; '' where there is none."""
    if "torch" in sys.modules:
        return str(getattr(sys.modules["torch"], "__version__", ""))
    import importlib.util
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return ""
    return _assigned(os.path.join(os.path.dirname(spec.origin), "version.py"), "__version__")


def _folders() -> Iterator[str]:
    """Folders with libraries for several releases of torch: FIRN_LIB, a build folder's, the
    package's."""
    if os.environ.get("FIRN_LIB"):
        yield os.environ["FIRN_LIB"]
    if os.environ.get("FIRN_BUILD"):
        yield os.path.join(os.environ["FIRN_BUILD"], "pytorch_plugin")
    yield os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")


def _built_for(build: str) -> str:
    """The torch for which a build folder has libraries without a minor in their names."""
    return _minor(_assigned(os.path.join(build, "pytorch_plugin/_build.py"), "torch_version"))


def minors_found() -> list[str]:
    """The releases of torch that there is a plugin for, in order."""
    found: set[str] = set()
    for folder in _folders():
        if os.path.isdir(folder):
            found.update(re.findall(r"^libfirn_torch-(\d+\.\d+)\.so$",
                                    "\n".join(os.listdir(folder)), re.M))
    if os.environ.get("FIRN_BUILD"):
        found.add(_built_for(os.environ["FIRN_BUILD"]))
    return sorted(found - {""}, key=lambda minor: [int(part) for part in minor.split(".")])


def find_library(name: str) -> str | None:
    """FIRN_LIB (a folder like the package's lib/) first, then FIRN_BUILD (a build folder), then the
    package. None where there is none; libraries that stand on torch are those that fit it."""
    build = os.environ.get("FIRN_BUILD")
    in_build = [os.path.join(build, _BUILT[name])] if build and name in _BUILT else []
    if name in _FOR_TORCH:
        minor = _minor(torch_version())
        if build and _built_for(build) != minor:
            in_build = []  # a library for another torch has its minor in its name
        name = name.replace(".so", "-%s.so" % minor)
    paths = [os.path.join(folder, name) for folder in _folders()]
    if os.environ.get("FIRN_LIB"):
        paths[1:1] = in_build
    else:
        paths[:0] = in_build
    return next((path for path in paths if os.path.isfile(path)), None)


def misfit() -> str:
    """Why no plugin fits this torch, in words; '' where there is one for it."""
    version, minors = torch_version(), minors_found()
    if _minor(version) in minors:
        return ""
    if not minors:
        return "libfirn_torch.so is not installed; reinstall firn"
    return ("built for torch %s, found %s: its binary interface differs; install a Firn that is "
            "built for it" % (" and ".join(minors), version))


def _why_not_loaded(path: str, error: OSError) -> str:
    """The loader's words, and the cause: another library, or a mix of two builds."""
    missing = re.match(r"(\S+?): cannot open shared object file", str(error))
    if missing and missing.group(1) != path:
        return "%s needs %s, which this machine does not have; install that library" % (
            os.path.basename(path), missing.group(1))
    other = re.match(r"(/\S+?): ", str(error))
    if other and other.group(1) != path:
        return "%s needs %s, which does not load (%s)" % (os.path.basename(path), other.group(1),
                                                          error)
    return "%s does not fit torch %s (%s); reinstall firn" % (os.path.basename(path),
                                                              torch_version(), error)


def _driver_there() -> bool:
    """Whether the loader would find a driver. (Asking it would load one.)"""
    if os.environ.get("FIRN_DEVICE") == "software" or os.environ.get("FIRN_DRIVER"):
        return True
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), "/lib64", "/usr/lib64",
               "/usr/lib", "/usr/lib/%s-linux-gnu" % os.uname().machine]
    if any(folder and os.path.exists(os.path.join(folder, "libcuda.so.1")) for folder in folders):
        return True
    try:
        with open("/etc/ld.so.cache", "rb") as file:
            return b"libcuda.so.1\0" in file.read()
    except OSError:
        return False


def stand_in_front() -> None:
    """Loads the library that stands in front of the driver, so that every later kernel's launch is
    seen, if there is a driver and it has not been opened yet."""
    try:  # the driver itself, or the stand-in
        ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        path = find_library("libfirn_preload.so")
        if path is not None and _driver_there():
            ctypes.CDLL(path, mode=os.RTLD_NOW)


def load_for_torch(name: str) -> ctypes.CDLL:
    """A library that stands on torch, which must be loaded. OSError where there is none that
    fits."""
    path = find_library(name)
    if path is None:
        raise OSError(misfit() or "%s for torch %s is not installed" % (name, torch_version()))
    try:
        return ctypes.CDLL(path)
    except OSError as error:  # another build of the same release: another CUDA
        raise OSError(_why_not_loaded(path, error)) from None


def load_plugin() -> ctypes.CDLL:
    """libfirn_torch.so, with its functions declared. torch must be loaded."""
    library = load_for_torch("libfirn_torch.so")
    text, size, address = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
    for name, result, arguments in (
            ("install", ctypes.c_int, (text, text, size)),
            ("split_conf", size, (text, text, size)),
            ("stats", size, (text, size)),
            ("settings", size, (text, size)),
            ("stalls", size, (text, size)),
            ("call_sites", None, (ctypes.c_int,)),
            ("no_spill", None, (ctypes.c_int,)),
            ("observing", ctypes.c_int, ()),
            ("observe", None, ()),
            ("pin", ctypes.c_int, (address, text, size)),
            ("unpin", ctypes.c_int, (address, address, text, size)),
            ("give_address", ctypes.c_int, (address, ctypes.c_int)),
            ("address_error", size, (text, size)),
            ("begin_use", None, ()),
            ("use", ctypes.c_int, (address,)),
            ("end_use", None, ()),
            ("prefetch", ctypes.c_int, (address, size, text, size)),
            ("cold", ctypes.c_int, (address, size, text, size)),
            ("on_host", ctypes.c_int, (address, ctypes.c_int, address, address, text, size)),
            ("host_pieces", None, (address,)),
            ("end_on_host", None, (address, ctypes.c_uint64)),
            ("state", size, (address, text, size)),
            ("spill_all", None, ()),
            ("spill_half", None, ()),
            ("check", None, ()),
            ("keep_recipes", ctypes.c_int, (size, ctypes.c_int)),
            ("recipe", size, (address, text, size)),
            ("make_again", ctypes.c_int, (address, address, ctypes.c_int, text, size)),
            ("always_make_again", None, (ctypes.c_int,)),
            ("remade", size, (text, size)),
            ("recipes", size, (text, size))):
        function = getattr(library, "firn_torch_" + name)
        function.restype, function.argtypes = result, arguments
    return library


def read_text(function: Any, *arguments: Any) -> str:
    """The text of a function that takes (..., buffer, size) and answers the whole length."""
    size = 4096
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = function(*arguments, buffer, size)
        if length < size:
            return buffer.value.decode(errors="replace")
        size = length + 1
