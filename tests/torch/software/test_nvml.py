"""The software libnvidia-ml.so.1, asked by NVIDIA's own Python client and by torch."""

import json
import os
import subprocess
import sys

import pytest
import software_device

pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
pytestmark = pytest.mark.skipif(software_device.libraries() is None,
                                reason="the software device is not built")


HERE = os.path.dirname(os.path.abspath(__file__))


def run(code, **settings):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                          env=software_device.environment(**settings))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


ASKED = """
import ctypes, json, os, pynvml as n
n.nvmlInit()
first, last = n.nvmlDeviceGetHandleByIndex(0), n.nvmlDeviceGetHandleByIndex(2)
bus = n.nvmlDeviceGetPciInfo(last).busId
fabric = n.c_nvmlGpuFabricInfoV_t()
n.nvmlDeviceGetGpuFabricInfoV(first, ctypes.byref(fabric))
runtime = ctypes.CDLL("libcudart.so.13")
by_runtime = ctypes.create_string_buffer(16)
assert runtime.cudaDeviceGetPCIBusId(by_runtime, 16, 2) == 0
plain, wide = n.nvmlDeviceGetMemoryInfo(first), n.nvmlDeviceGetMemoryInfo(first, n.nvmlMemory_v2)
before = n.nvmlDeviceGetComputeRunningProcesses(first)
memory = ctypes.c_void_p()
assert runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(64 << 20)) == 0
(process,) = n.nvmlDeviceGetComputeRunningProcesses(first)
def refused(call):
    try:
        call()
    except n.NVMLError as error:
        return error.value
said = dict(
    count=n.nvmlDeviceGetCount(), name=n.nvmlDeviceGetName(first),
    uuids=[n.nvmlDeviceGetUUID(each) for each in (first, last)],
    same=n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(bus.encode())),
    by_runtime=n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(by_runtime.value)),
    totals=[plain.total, wide.total], free=plain.free, before=len(before),
    used=n.nvmlDeviceGetMemoryInfo(first).used, process=process.usedGpuMemory,
    mine=process.pid == os.getpid(), of_last=n.nvmlDeviceGetMemoryInfo(last).used,
    fabric=[fabric.state, fabric.status, fabric.version == n.nvmlGpuFabricInfo_v2],
    beyond=refused(lambda: n.nvmlDeviceGetHandleByIndex(3)),
    nowhere=refused(lambda: n.nvmlDeviceGetHandleByPciBusId(b"0000:09:00.0")),
    link=refused(lambda: n.nvmlDeviceGetNvLinkRemotePciInfo(first, 0)),
    version=n.nvmlSystemGetCudaDriverVersion())
n.nvmlShutdown()
print(json.dumps({**said, "after": refused(n.nvmlDeviceGetCount)}))
"""


def test_answers_about_the_device():
    said = run(ASKED, FIRN_GPU_DEVICES="3", FIRN_GPU_MEMORY="1GiB")
    first, last = said.pop("uuids")
    assert first.startswith("GPU-") and len(first) == 40 and first != last
    import pynvml
    assert said == {
        "count": 3, "name": "Firn software GPU", "same": 2, "by_runtime": 2,
        "totals": [1 << 30, 1 << 30], "free": 1 << 30, "before": 0, "used": 64 << 20,
        "process": 64 << 20, "mine": True, "of_last": 0, "fabric": [0, 0, True],
        "beyond": pynvml.NVML_ERROR_INVALID_ARGUMENT, "nowhere": pynvml.NVML_ERROR_NOT_FOUND,
        "link": pynvml.NVML_ERROR_NOT_SUPPORTED, "version": 13000,
        "after": pynvml.NVML_ERROR_UNINITIALIZED}


def test_torch_counts_devices_without_a_driver():
    """And so may fork afterwards, as on a machine with NVML."""
    said = run("""
import json, os, torch, software_device
count = torch.cuda.device_count()
child = os.fork()
if child == 0:
    software_device.start()
    torch.zeros(1, device="cuda")
    os._exit(0)
print(json.dumps([count, torch.cuda._raw_device_count_nvml(), os.waitpid(child, 0)[1],
                  torch.cuda.is_initialized()]))
""", FIRN_GPU_DEVICES="2", PYTHONPATH=HERE)
    assert said == [2, 2, 0, False]


def test_memory_in_use_is_that_of_the_device():
    said = run("""
import json, torch, software_device
software_device.start()
x = torch.zeros(32 << 20, dtype=torch.uint8, device="cuda")
free, total = torch.cuda.mem_get_info()
print(json.dumps([torch.cuda.device_memory_used(), total - free,
                  str(torch.cuda.memory_reserved())]))
""", PYTHONPATH=HERE)
    assert said[0] == said[1] >= 32 << 20, said
