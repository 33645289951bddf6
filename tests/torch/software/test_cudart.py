"""The software libcudart.so.13 by itself, without torch."""

import ctypes
import os
import subprocess
import sys

import pytest
import software_device

pytestmark = pytest.mark.skipif(software_device.libraries() is None,
                                reason="the software device is not built")


def run(code, **settings):
    return subprocess.run([sys.executable, "-c", code], env=software_device.environment(**settings),
                          capture_output=True, text=True, timeout=60)


COUNT = """
import ctypes
runtime = ctypes.CDLL("libcudart.so.13")
count = ctypes.c_int(-1)
error = runtime.cudaGetDeviceCount(ctypes.byref(count))
print(error, count.value)
"""


@pytest.mark.parametrize("visible,expected", [
    (None, "0 3"), ("0", "0 1"), ("1,0", "0 2"), ("2,1,0", "0 3"), ("", "100 0"), ("-1", "100 0"),
    ("0,7,1", "0 1"), ("1,1", "100 0"), ("x", "100 0"), ("0,-1,1", "0 1"),
    ("GPU-nothing", "100 0")])
def test_visible_devices(visible, expected):
    settings = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    done = run(COUNT, FIRN_GPU_DEVICES="3", **settings)
    assert done.returncode == 0 and done.stdout.split("\n")[0] == expected, done


def test_refusals_are_named_once():
    done = run("""
import ctypes
runtime = ctypes.CDLL("libcudart.so.13")
runtime.cudaGetErrorName.restype = ctypes.c_char_p
errors = [runtime.cudaGraphAddKernelNode(), runtime.cudaGraphAddKernelNode()]
print(errors, runtime.cudaGetErrorName(errors[0]).decode(), runtime.cudaGetLastError(),
      runtime.cudaGetLastError())
""")
    assert done.stdout == "[801, 801] cudaErrorNotSupported 801 0\n", done
    assert done.stderr.count("cudaGraphAddKernelNode is not supported") == 1, done


def test_memory_copies_and_errors():
    done = run("""
import ctypes
runtime = ctypes.CDLL("libcudart.so.13")
runtime.cudaGetErrorString.restype = ctypes.c_char_p
device = ctypes.c_void_p()
assert runtime.cudaMalloc(ctypes.byref(device), ctypes.c_size_t(4096)) == 0
text = ctypes.create_string_buffer(b"firn" * 1024, 4096)
back = ctypes.create_string_buffer(4096)
size = ctypes.c_size_t(4096)
assert runtime.cudaMemcpy(device, text, size, 1) == 0
assert runtime.cudaMemcpy(back, device, size, 2) == 0
assert back.raw == text.raw
assert runtime.cudaMemset(device, 7, ctypes.c_size_t(100)) == 0
assert runtime.cudaMemcpy(back, device, size, 4) == 0  # cudaMemcpyDefault
assert back.raw == b"\\7" * 100 + text.raw[100:]
assert runtime.cudaFree(device) == 0
huge = ctypes.c_size_t(1 << 50)
assert runtime.cudaMalloc(ctypes.byref(device), huge) == 2
assert runtime.cudaGetErrorString(2) == b"out of memory"
assert runtime.cudaPeekAtLastError() == 2 and runtime.cudaGetLastError() == 2
assert runtime.cudaGetLastError() == 0
assert runtime.cudaSetDevice(9) == 101
assert runtime.cudaDeviceReset() == 0
runtime.cudaGetLastError()
assert runtime.cudaMalloc(ctypes.byref(device), ctypes.c_size_t(4096)) == 0
assert runtime.cudaFree(device) == 0
""")
    assert done.returncode == 0, done.stderr


def exported(path):
    lines = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    return {line.split()[-1] for line in lines}


def test_every_symbol_that_torch_imports_is_there():
    spec = __import__("importlib.util", fromlist=["util"]).find_spec("torch")
    folder = os.path.join(os.path.dirname(spec.origin), "lib")
    there = {name.replace("@@", "@") for name in exported(software_device.libraries()["cudart"])}
    wanted = set()
    for file in os.listdir(folder):
        if file.startswith("libtorch") or file.startswith("libc10"):
            lines = subprocess.run(["nm", "-D", "--undefined-only", os.path.join(folder, file)],
                                   capture_output=True, text=True, check=True).stdout.splitlines()
            wanted |= {line.split()[-1] for line in lines if "@libcudart" in line}
    assert len(wanted) > 80
    assert not wanted - there, wanted - there


def test_without_a_driver():
    env = software_device.environment(LD_PRELOAD=software_device.libraries()["cudart"])
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has a driver")
    done = subprocess.run([sys.executable, "-c", COUNT], env=env, capture_output=True, text=True,
                          timeout=60)
    assert done.stdout == "35 0\n", done  # cudaErrorInsufficientDriver
