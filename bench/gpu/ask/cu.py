"""The driver by its bare names, for questions to it: no Firn, no torch, nothing compiled. Answers
are the driver's own: numbers with their names, and how long a call took.

A question runs in a process of its own and writes an answer as soon as there is one, as a line of
JSON, so that a process that dies loses nothing but what it was about to ask.
"""

import ctypes
import json
import pathlib
import struct
import time

GRANULE = 2 << 20
SUCCESS = 0
DEVICE, HOST_NUMA = 1, 3          # CUmemLocationType
NONE, POSIX_FD, FABRIC = 0, 1, 8  # CUmemAllocationHandleType
NON_BLOCKING = 1                  # CUstream_flags
PTX = pathlib.Path(__file__).with_name("kernels.ptx")


class NotHere(Exception):
    """A question that this driver cannot be asked, and why."""


class Unexpected(Exception):
    """What a question stands on failed."""


class Answers:
    """Lines of JSON: {"about": ...} before what may end the process, then {"name", "value"}."""

    def __init__(self, path):
        self.out = open(path, "a", encoding="utf-8")

    def line(self, **what):
        self.out.write(json.dumps(what) + "\n")
        self.out.flush()

    def about(self, what):
        self.line(about=what)

    def note(self, name, value):
        self.line(name=name, value=value)


class Gpu:
    """The first device with its primary context current."""

    def __init__(self, library, answers, context=True):
        self.lib, self.answers = ctypes.CDLL(library), answers
        self.software = hasattr(self.lib, "firnGpuConfigure")
        self.kept = []  # callbacks of software kernels
        self.need("cuInit", 0)
        if context:
            self.context = ctypes.c_void_p()
            self.need("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), 0)
            self.need("cuCtxSetCurrent", self.context)

    def has(self, name):
        return hasattr(self.lib, name)

    def call(self, name, *arguments):
        """The number. Whole words everywhere: what is narrower takes the low part of a register."""
        return getattr(self.lib, name)(*(
            ctypes.c_uint64(each & 0xffffffffffffffff) if isinstance(each, int) else each
            for each in arguments))

    def need(self, name, *arguments):
        result = self.call(name, *arguments)
        if result:
            raise Unexpected(f"{name}: {self.named(result)}")

    def named(self, result):
        text = ctypes.c_char_p()
        if self.lib.cuGetErrorName(ctypes.c_int(result), ctypes.byref(text)) or not text.value:
            return str(result)
        return f"{result} {text.value.decode()}"

    def ask(self, name, *arguments):
        """{"answer": "700 CUDA_ERROR_...", "us": ...}, said before it is asked."""
        self.answers.about(name)
        begin = time.perf_counter()
        result = self.call(name, *arguments)
        us = (time.perf_counter() - begin) * 1e6
        return {"answer": self.named(result), "us": round(us, 1)}

    def attribute(self, which):
        """The value, or None."""
        value = ctypes.c_int(-1)
        return None if self.call("cuDeviceGetAttribute", ctypes.byref(value), which, 0) \
            else value.value

    # Memory.
    def reserve(self, size):
        address = ctypes.c_uint64()
        self.need("cuMemAddressReserve", ctypes.byref(address), size, 0, 0, 0)
        return address.value

    def create(self, size, properties):
        """(number, handle)"""
        handle = ctypes.c_uint64()
        return self.call("cuMemCreate", ctypes.byref(handle), size, properties, 0), handle.value

    def map(self, address, size, handle):
        self.need("cuMemMap", address, size, 0, handle, 0)
        self.need("cuMemSetAccess", address, size, access(DEVICE, 0), 1)

    def mapped(self, size):
        """(address, handle) of a frame of the device."""
        result, handle = self.create(size, properties(DEVICE, 0))
        if result:
            raise Unexpected(f"cuMemCreate: {self.named(result)}")
        address = self.reserve(size)
        self.map(address, size, handle)
        return address, handle

    def pinned(self, size):
        """Page-locked host memory that the device knows by the same address."""
        at = ctypes.c_void_p()
        self.need("cuMemHostAlloc", ctypes.byref(at), size, 3)  # portable, mapped
        ctypes.memset(at.value, 0, size)
        return at.value

    def stream(self, flags=NON_BLOCKING):
        stream = ctypes.c_void_p()
        self.need("cuStreamCreate", ctypes.byref(stream), flags)
        return stream

    def event(self):
        event = ctypes.c_void_p()
        self.need("cuEventCreate", ctypes.byref(event), 2)  # no timing
        return event

    # Kernels.
    def module(self):
        if self.software:
            raise NotHere("not on the software GPU, which takes no PTX")
        module, text = ctypes.c_void_p(), PTX.read_bytes() + b"\0"
        self.need("cuModuleLoadData", ctypes.byref(module), text)
        return module

    def kernel(self, name):
        if self.software and name == "fills":
            return self.filling()
        if not hasattr(self, "loaded"):
            self.loaded = self.module()
        function = ctypes.c_void_p()
        self.need("cuModuleGetFunction", ctypes.byref(function), self.loaded, name.encode())
        return function

    def filling(self):
        """The kernel "fills" as a function of this process."""
        @ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, ctypes.c_void_p)
        def fills(values, _grid, _block):
            to, count = (ctypes.c_uint64.from_address(values[i]).value for i in range(2))
            word = ctypes.c_uint32.from_address(values[2]).value
            (ctypes.c_uint32 * count).from_address(to)[:] = [word] * count
        layout = (ctypes.c_uint * 10)(0, 8, 8, 8, 16, 4, 20, 4, 0, 0)
        function = ctypes.c_void_p()
        self.kept += [fills, layout]
        self.need("firnGpuKernelCreate", b"fills", fills, layout, ctypes.byref(function))
        return function

    def launch(self, function, stream, values, blocks=1, threads=1):
        """`values`: ctypes objects. The number."""
        pointers = (ctypes.c_void_p * max(1, len(values)))(
            *(ctypes.addressof(value) for value in values))
        return self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream,
                         pointers, None)

    def spin(self, flag, ms, stream, blocks=1):
        """Keeps the stream busy until the word at `flag` is not 0, or for so long."""
        if self.software:
            self.need("firnGpuBusy", stream, ms * 1000000)
        else:
            result = self.launch(self.kernel("spins"), stream,
                                 [ctypes.c_uint64(flag), ctypes.c_uint64(ms * 1000000)], blocks,
                                 1 if blocks == 1 else 1024)
            if result:
                raise Unexpected(f"a kernel that spins: {self.named(result)}")


def properties(kind, number, handles=NONE, rdma=False):
    """CUmemAllocationProp."""
    return struct.pack("=iiiiQBBHI", 1, handles, kind, number, 0, 0, 1 if rdma else 0, 0, 0)


def access(kind, number, flags=3):
    """CUmemAccessDesc."""
    return struct.pack("=iii", kind, number, flags)
