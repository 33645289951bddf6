"""Where Firn's libraries are, and the functions of libfirn_torch.so."""

import ctypes
import os

_PLACES = (  # in the package, in a build folder
    ("libfirn_torch.so", "pytorch_plugin/libfirn_torch.so"),
    ("libfirn_torch_ops.so", "backing/gpu/software/torch_ops/libfirn_torch_ops.so"),
    ("software/libcuda.so.1", "backing/gpu/software/libcuda.so.1"),
    ("software/libcudart.so.13", "backing/gpu/software/cudart/libcudart.so.13"),
)


def find_library(name):
    """FIRN_LIB (a folder like the package's lib/) first, then FIRN_BUILD (a build folder), then the
    package. None where there is none."""
    places = []
    if os.environ.get("FIRN_LIB"):
        places.append(os.path.join(os.environ["FIRN_LIB"], name))
    if os.environ.get("FIRN_BUILD"):
        places += [os.path.join(os.environ["FIRN_BUILD"], built)
                   for packaged, built in _PLACES if packaged == name]
    places.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", name))
    return next((place for place in places if os.path.isfile(place)), None)


def load_plugin():
    """libfirn_torch.so, with its functions declared. torch must be loaded."""
    path = find_library("libfirn_torch.so")
    if path is None:
        raise OSError("libfirn_torch.so is not installed")
    library = ctypes.CDLL(path)
    text, size, address = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
    for name, result, arguments in (
            ("install", ctypes.c_int, (text, text, size)),
            ("split_conf", size, (text, text, size)),
            ("stats", size, (text, size)),
            ("settings", size, (text, size)),
            ("observing", ctypes.c_int, ()),
            ("observe", None, ()),
            ("pin", ctypes.c_int, (address, text, size)),
            ("unpin", ctypes.c_int, (address, text, size)),
            ("prefetch", ctypes.c_int, (address, size, address, text, size)),
            ("cold", ctypes.c_int, (address, size, text, size)),
            ("state", size, (address, text, size)),
            ("spill_all", None, ()),
            ("check", None, ())):
        function = getattr(library, "firn_torch_" + name)
        function.restype, function.argtypes = result, arguments
    return library


def read_text(function, *arguments):
    """The text of a function that takes (..., buffer, size) and answers the whole length."""
    size = 4096
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = function(*arguments, buffer, size)
        if length < size:
            return buffer.value.decode(errors="replace")
        size = length + 1
