"""Questions about streams that only a driver answers: the null stream while another is captured,
the stream that is each thread's own, two kernels on one frame."""

import ctypes
import threading

from cu import DEVICE, GRANULE, Unexpected, properties

LEGACY, PER_THREAD = 1, 2  # CU_STREAM_LEGACY, CU_STREAM_PER_THREAD
MODES = ("global", "thread local", "relaxed")
SPIN_MS = 150


def capture_null(gpu):
    """What is answered of the null stream, and of events on it, while a stream is captured."""
    event = gpu.event()
    for kind, flags in (("blocking", 0), ("non-blocking", 1)):
        for mode, mode_name in enumerate(MODES):
            found, stream = {}, gpu.stream(flags)
            gpu.need("cuStreamBeginCapture_v2", stream, mode)
            for name, which in (("null", 0), ("legacy", LEGACY), ("per thread", PER_THREAD),
                                ("itself", stream)):
                status = ctypes.c_int(-1)
                told = gpu.ask("cuStreamIsCapturing", which, ctypes.byref(status))
                found[f"cuStreamIsCapturing {name}"] = {**told, "status": status.value}
            end(gpu, stream, found, "after these")
            # What spoils a capture, one for each.
            for name, arguments in (("cuStreamQuery", (0,)), ("cuEventRecord", (event, 0)),
                                    ("cuStreamSynchronize", (0,)), ("cuCtxSynchronize", ())):
                gpu.need("cuStreamBeginCapture_v2", stream, mode)
                found[f"{name} null"] = gpu.ask(name, *arguments)
                end(gpu, stream, found, f"after {name}")
            gpu.answers.note(f"{kind}, {mode_name}", found)
            gpu.need("cuStreamDestroy_v2", stream)


def end(gpu, stream, found, name):
    graph = ctypes.c_void_p()
    found[f"cuStreamEndCapture {name}"] = gpu.named(
        gpu.call("cuStreamEndCapture", stream, ctypes.byref(graph)))
    if graph.value:
        gpu.need("cuGraphDestroy", graph)


def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def per_thread(gpu):
    """Which streams an event on another one covers, in this thread and in others."""
    flag, own = gpu.pinned(4096), gpu.stream()
    gpu.spin(flag, 1, own)  # (loads the kernel)
    gpu.need("cuCtxSynchronize")
    streams = {"per thread": PER_THREAD, "legacy": LEGACY, "non-blocking": own}

    def case(busy, noted_name, elsewhere=False):
        event, told, noted = gpu.event(), {}, streams[noted_name]

        def note():
            gpu.need("cuCtxSetCurrent", gpu.context)
            told["record"] = gpu.named(gpu.call("cuEventRecord", event, noted))
            told["event"] = gpu.named(gpu.call("cuEventQuery", event))
            told["stream"] = gpu.named(gpu.call("cuStreamQuery", noted))
        gpu.spin(flag, SPIN_MS, streams[busy])
        in_thread(note) if elsewhere else note()
        gpu.need("cuCtxSynchronize")
        gpu.need("cuEventDestroy_v2", event)
        gpu.answers.note(f"{busy} busy, {noted_name} noted" +
                         (" in another thread" if elsewhere else ""), told)

    for busy, noted in (("per thread", "legacy"), ("per thread", "per thread"),
                        ("legacy", "per thread")):
        case(busy, noted)
        case(busy, noted, elsewhere=True)
    case("non-blocking", "legacy")
    case("non-blocking", "per thread")


def shared_frame(gpu):
    """A frame mapped at two addresses; kernels at once, each through one of them to its own part."""
    result, frame = gpu.create(GRANULE, properties(DEVICE, 0))
    if result:
        raise Unexpected(gpu.named(result))
    addresses = [gpu.reserve(GRANULE) for _ in range(2)]
    for address in addresses:
        gpu.map(address, GRANULE, frame)
    function, host = gpu.kernel("fills"), gpu.pinned(GRANULE)
    streams, wrong, rounds = [gpu.stream(), gpu.stream()], 0, 3 if gpu.software else 40
    times = 1 if gpu.software else 300
    for part in (GRANULE // 2, 64 << 10):
        words = part // 4
        for number in range(rounds):
            for which in range(2):
                values = (ctypes.c_uint64(addresses[which] + which * part), ctypes.c_uint64(words),
                          ctypes.c_uint32(2 * number + which + 1), ctypes.c_uint32(times))
                result = gpu.launch(function, streams[which], values, 16, 256)
                if result:
                    raise Unexpected(gpu.named(result))
            for stream in streams:
                gpu.need("cuStreamSynchronize", stream)
            gpu.need("cuMemcpyDtoHAsync_v2", host, addresses[number % 2], 2 * part, streams[0])
            gpu.need("cuStreamSynchronize", streams[0])
            for which in range(2):
                found = (ctypes.c_uint32 * words).from_address(host + which * part)
                wrong += sum(word != 2 * number + which + 1 for word in found)
        gpu.answers.note(f"parts of {part >> 10} KiB: wrong words", wrong)
