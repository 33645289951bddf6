"""A program whose driver refuses every call from the nth one on, or the nth alone, again and again:
torch is imported once, each run is a fork that starts CUDA and Firn for itself and ends as programs
do.

    python refused_calls.py FILE.json LIBCUDA    [[from, n, error, once], ...]

`from` is "start" (of CUDA) or "work" (memory is short by then). Prints a line of JSON for each:
{"from", "n", "error", "once", "status", "seconds" (its longest step), "longest" (which that is),
"words" (of the errors that it was given), "calls" (since `from`), "end" (seconds from its last step
to its end), "said" (on stderr)}. Status 9: wrong bytes.
"""

import ctypes
import faulthandler
import json
import os
import select
import signal
import sys
import tempfile
import time

import torch

SECONDS = 60  # a run that takes longer is killed: it hangs
COUNT, NUMBERS = 12, 1 << 20  # 48 MiB


class Steps:
    """Does one thing after the other, whatever fails, as a program that catches its errors."""

    def __init__(self):
        self.seconds, self.longest, self.words = 0, "", []

    def does(self, what, call):
        begin = time.monotonic()
        try:
            return call()
        except RuntimeError as error:
            self.words.append(f"{what}: {error}")
        finally:
            took = time.monotonic() - begin
            if took > self.seconds:
                self.seconds, self.longest = took, what


def refuse(gpu, n, error, once):
    if n:
        fail = gpu.firnGpuFailAt if once else gpu.firnGpuFailFrom
        fail(b"*", ctypes.c_uint64(n), error)


def work(steps, gpu, begin, n, error, once):
    """The steps; False where a value that could be read was wrong: of a tensor, as many ones were
    added as steps said so, or besides those that were refused, for which nobody can tell."""
    kept = [steps.does("full", lambda: torch.full((NUMBERS,), float(i), device="cuda"))
            for i in range(COUNT)]
    gpu.firnGpuFallibleCalls.restype = ctypes.c_uint64
    before = gpu.firnGpuFallibleCalls() if begin == "work" else 0
    if begin == "work":
        refuse(gpu, n, error, once)
    added, refused = [0] * COUNT, [0] * COUNT
    side = steps.does("stream", torch.cuda.Stream)

    def on_side(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x * 2
        x.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)
        return y

    right = True

    def has(tensor, least, most):
        """All of it has one value between these, or it cannot be read."""
        values = steps.does("read", tensor.cpu) if tensor is not None else None
        return values is None or (least <= values[0] <= most and bool((values == values[0]).all()))

    def bounds(i):
        return i + added[i], i + added[i] + refused[i]

    for _ in range(2):
        for i, x in enumerate(kept):
            if x is None:
                continue
            done = steps.does("add", lambda: x.add_(1)) is not None
            added[i] += done
            refused[i] += not done
        if side is not None and kept[3] is not None:
            doubled = steps.does("on_side", lambda: on_side(kept[3]))
            right &= has(doubled, *(2 * each for each in bounds(3)))
        ones = steps.does("pinned",
                          lambda: torch.ones(NUMBERS).pin_memory().to("cuda", non_blocking=True))
        right &= has(ones, 1, 1)
        steps.does("synchronize", torch.cuda.synchronize)
        steps.does("empty_cache", torch.cuda.empty_cache)
    for i, x in enumerate(kept):
        right &= has(x, *bounds(i))
    steps.does("delete", kept.clear)
    steps.does("empty_cache", torch.cuda.empty_cache)
    return right, gpu.firnGpuFallibleCalls() - before


def child(begin, n, error, once, gpu, report):
    faulthandler.enable()
    if begin == "start" and n:
        os.environ["FIRN_GPU_FAIL"] = f"*:{n}{'' if once else '+'}:{error}"
    steps = Steps()
    right, calls = work(steps, gpu, begin, n, error, once)
    report.write(json.dumps({"seconds": steps.seconds, "longest": steps.longest,
                             "words": steps.words, "calls": calls,
                             "done": time.monotonic()}))
    report.flush()
    sys.exit(0 if right else 9)


def ended(pid):
    """Its status, negative for a signal, and how long its end took to come."""
    end = time.monotonic() + SECONDS
    descriptor = os.pidfd_open(pid)
    ready, _, _ = select.select([descriptor], [], [], end - time.monotonic())
    os.close(descriptor)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main():
    assert not torch.cuda.is_initialized()
    with open(sys.argv[1], encoding="utf-8") as file:
        wanted = json.load(file)
    for begin, n, error, once in wanted:
        with tempfile.TemporaryFile("w+") as report, tempfile.TemporaryFile() as said:
            pid = os.fork()
            if pid == 0:  # (it leaves these files, and ends, as programs do)
                os.dup2(said.fileno(), 2)
                child(begin, n, error, once, ctypes.CDLL(sys.argv[2]), report)
            status = ended(pid)
            now = time.monotonic()
            report.seek(0)
            said.seek(0)
            found = json.loads(report.read() or "{}")
            print(json.dumps({"from": begin, "n": n, "error": error, "once": once,
                              "status": status, "end": now - found.pop("done", now), **found,
                              "said": said.read().decode(errors="replace")}), flush=True)


if __name__ == "__main__":
    main()
