"""cuMemGetInfo as a program without PyTorch hears it."""

import json
import sys

import pytest

PROGRAM = """
import ctypes, json
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    assert status == 0, (name, status)
def info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value
device, context, block = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
before = info()
call("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(32 << 20))
print(json.dumps([before, info()]))
"""


@pytest.mark.parametrize("told, total", [(None, 64 << 20), ("1GiB", 1 << 30), ("16MiB", 16 << 20)])
def test_a_program_that_sizes_itself_is_told_what_the_user_wishes(firn, told, total):
    done = firn("run", "--device", "software", "--budget", "64MiB", "--host", "64MiB", "--",
                sys.executable, "-c", PROGRAM,
                environment={"FIRN_MEMORY_INFO": told} if told else {})
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    assert before == [total, total]
    assert after == [max(total - (32 << 20), 0), total]
