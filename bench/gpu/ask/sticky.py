"""Answers of every entry that Firn calls (include/firn/driver.h) once a kernel of the program's has
failed: which of them tell of it, which go on, how long they take, how the process ends."""

import ctypes
import time

import cu

# How a kernel fails; "none": the same calls beside no failure, to see that these are right.
KINDS = ("none", "stores", "asserts", "misaligned", "traps", "jumps")
SOFTWARE = {"stores": 700, "asserts": 710, "misaligned": 716, "traps": 719, "jumps": 718}
SEEN_AFTER_S = .3  # a context takes a moment to be lost; asking meanwhile would be an answer
SIZE = cu.GRANULE


class Things:
    """One of each for every call, so that one call's answer does not come from another's."""

    def __init__(self, gpu):
        self.gpu = gpu
        self.word, self.size, self.other = (ctypes.c_uint64() for _ in range(3))
        self.ms, self.text = ctypes.c_float(), ctypes.create_string_buffer(64)
        self.streams = [gpu.stream() for _ in range(3)]
        self.events = [gpu.event() for _ in range(3)]
        self.timed = [ctypes.c_void_p(), ctypes.c_void_p()]
        for event in self.timed:
            gpu.need("cuEventCreate", ctypes.byref(event), 0)
            gpu.need("cuEventRecord", event, self.streams[0])
        self.maps = [gpu.mapped(SIZE) for _ in range(3)]  # to copy, to unmap, to keep
        self.reserved = [gpu.reserve(SIZE) for _ in range(2)]  # to map, to free
        self.frames = []
        for handles in (cu.NONE, cu.NONE, cu.POSIX_FD):  # to map, to release, to export
            result, handle = gpu.create(SIZE, cu.properties(cu.DEVICE, 0, handles))
            self.frames.append(0 if result else handle)
        self.fd = ctypes.c_int(-1)
        gpu.call("cuMemExportToShareableHandle", ctypes.byref(self.fd), self.frames[2],
                 cu.POSIX_FD, 0)
        self.host = gpu.pinned(SIZE)
        self.pages = [ctypes.create_string_buffer(SIZE) for _ in range(2)]  # to register, and back
        gpu.need("cuMemHostRegister_v2", self.at(1), 4096, 1)
        gpu.need("cuEventRecord", self.events[0], self.streams[0])
        gpu.need("cuStreamSynchronize", self.streams[0])

    def at(self, which):
        """A page of the buffer's own."""
        return (ctypes.addressof(self.pages[which]) + 4095) & ~4095


def calls(gpu, things):
    """[(entry, arguments)]: what asks first, what ends things last."""
    t, out = things, ctypes.byref
    one, two, _ = t.streams
    to_copy, to_unmap, kept = t.maps
    current = (ctypes.c_void_p(), ctypes.c_void_p())
    mode, status = ctypes.c_int(2), ctypes.c_int()
    return (
        ("cuEventQuery", (t.events[0],)), ("cuEventQuery", (t.events[1],)),
        ("cuInit", (0,)), ("cuDriverGetVersion", (out(status),)),
        ("cuGetErrorName", (700, out(current[0]))), ("cuGetErrorString", (700, out(current[0]))),
        ("cuDeviceGetCount", (out(status),)), ("cuDeviceGet", (out(status), 0)),
        ("cuDeviceGetName", (t.text, 64, 0)), ("cuDeviceGetPCIBusId", (t.text, 64, 0)),
        ("cuDeviceGetAttribute", (out(status), 102, 0)), ("cuDeviceTotalMem_v2", (out(t.word), 0)),
        ("cuCtxGetCurrent", (out(current[0]),)), ("cuCtxPushCurrent_v2", (gpu.context,)),
        ("cuCtxPopCurrent_v2", (out(current[1]),)), ("cuCtxSetCurrent", (gpu.context,)),
        ("cuThreadExchangeStreamCaptureMode", (out(mode),)),
        ("cuStreamIsCapturing", (one, out(status))), ("cuStreamQuery", (one,)),
        ("cuStreamQuery", (two,)), ("cuEventElapsedTime", (out(t.ms), *t.timed)),
        ("cuMemGetInfo_v2", (out(t.word), out(t.size))),
        ("cuMemGetAllocationGranularity", (out(t.word), cu.properties(cu.DEVICE, 0), 0)),
        ("cuMemAddressReserve", (out(t.word), SIZE, 0, 0, 0)),
        ("cuMemCreate", (out(t.other), SIZE, cu.properties(cu.DEVICE, 0), 0)),
        ("cuMemMap", (t.reserved[0], SIZE, 0, t.frames[0], 0)),
        ("cuMemSetAccess", (kept[0], SIZE, cu.access(cu.DEVICE, 0), 1)),
        ("cuMemExportToShareableHandle", (out(status), t.frames[2], cu.POSIX_FD, 0)),
        ("cuMemImportFromShareableHandle", (out(t.word), ctypes.c_void_p(t.fd.value),
                                            cu.POSIX_FD)),
        ("cuMemHostRegister_v2", (t.at(0), 4096, 1)),
        ("cuMemcpyDtoHAsync_v2", (t.host, to_copy[0], 4096, one)),
        ("cuMemcpyHtoDAsync_v2", (to_copy[0], t.host, 4096, one)),
        ("cuMemcpyDtoDAsync_v2", (to_copy[0], to_copy[0] + 8192, 4096, one)),
        ("cuMemcpyAsync", (to_copy[0], t.host, 4096, one)),
        # (A function of the C library's that does nothing with null.)
        ("cuLaunchHostFunc", (one, ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p), 0)),
        ("cuMemsetD8Async", (to_copy[0], 1, 4096, one)),
        ("cuEventRecord", (t.events[0], one)), ("cuStreamWaitEvent", (one, t.events[0], 0)),
        ("cuEventSynchronize", (t.events[0],)), ("cuStreamSynchronize", (one,)),
        ("cuCtxSynchronize", ()),
        ("cuStreamCreate", (out(current[0]), 1)), ("cuEventCreate", (out(current[0]), 2)),
        ("cuMemUnmap", (to_unmap[0], SIZE)), ("cuMemRelease", (t.frames[1],)),
        ("cuMemAddressFree", (t.reserved[1], SIZE)), ("cuMemHostUnregister", (t.at(1),)),
        ("cuEventDestroy_v2", (t.events[2],)), ("cuStreamDestroy_v2", (t.streams[2],)),
        # What programs call besides.
        ("cuMemAlloc_v2", (out(t.word), SIZE)), ("cuMemHostAlloc", (out(current[0]), 4096, 1)),
        ("cuPointerGetAttribute", (out(status), 2, kept[0])),
        ("cuDevicePrimaryCtxRetain", (out(current[0]), 0)),
        ("cuDevicePrimaryCtxRelease_v2", (0,)),
    )


def fail(gpu, things, kind):
    """A kernel fails on the second stream; an event behind it."""
    if kind == "none":
        gpu.need("cuEventRecord", things.events[1], things.streams[1])
        gpu.need("cuStreamSynchronize", things.streams[1])
        return
    if gpu.software:
        if not gpu.has("firnGpuDie"):
            raise cu.NotHere("not on this software GPU: it loses no context")
        gpu.need("firnGpuDie", SOFTWARE[kind], 0)
        return
    to = {"stores": things.reserved[1], "misaligned": things.maps[0][0] + 1, "jumps": 16}
    name = "stores" if kind == "misaligned" else kind
    gpu.answers.about(f"a kernel that {kind}")
    result = gpu.launch(gpu.kernel(name), things.streams[1], [ctypes.c_uint64(to.get(kind, 0))])
    if result:
        raise cu.Unexpected(f"cuLaunchKernel: {gpu.named(result)}")
    gpu.call("cuEventRecord", things.events[1], things.streams[1])
    time.sleep(SEEN_AFTER_S)


def after(gpu, kind, left_out=""):
    """`left_out`: entries during which an earlier process ended, or did not come back."""
    things, passed = Things(gpu), set(filter(None, left_out.split(",")))
    fail(gpu, things, kind)
    seen = {}
    for entry, arguments in calls(gpu, things):
        seen[entry] = seen.get(entry, 0) + 1
        name = entry if seen[entry] == 1 else f"{entry} again"
        if name in passed:
            gpu.answers.note(name, {"answer": "left out: an earlier process ended in it"})
            continue
        told = gpu.ask(entry, *arguments)
        gpu.answers.line(about=name)
        gpu.answers.note(name, told)
