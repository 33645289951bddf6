"""Two devices that can use each other's memory."""

import ctypes

import torch
from _calls import MIB, alone, empty, is_firn

TWO = {"FIRN_GPU_DEVICES": "2"}


def open_to(device, pointer):
    """May kernels of `device` use what is at `pointer`? (Firn's memory is mapped, and so asked;
    native memory is open to all peers once access is enabled.)"""
    if not is_firn():
        return True

    class Location(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
    flags, location = ctypes.c_ulonglong(), Location(1, device)
    status = ctypes.CDLL("libcuda.so.1").cuMemGetAccess(
        ctypes.byref(flags), ctypes.byref(location), ctypes.c_ulonglong(pointer))
    return status == 0 and flags.value == 3


@alone(**TWO)
def call_copies_that_are_not_contiguous():
    x = torch.arange(1 << 20, dtype=torch.float32, device="cuda:0").view(1024, 1024)
    y = torch.zeros(1024, 1024, device="cuda:1")
    y.copy_(x.t())  # by a kernel that uses both devices' memory
    z = y.to("cuda:0", torch.float64)
    return [y[3, 5].item(), z[5, 3].item(), torch.equal(x.t().double(), z),
            torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1)]


@alone(**TWO)
def call_memory_is_open_to_a_peer():
    x = torch.ones(4 * MIB, device="cuda:0")
    y = torch.zeros(4 * MIB, device="cuda:1")
    y.copy_(x)
    x.copy_(y)
    later = [empty(3 * MIB), torch.ones(1000, device="cuda:1")]
    return [torch.cuda.can_device_access_peer(0, 1)] + [
        open_to(device, each.data_ptr()) for device in (0, 1) for each in (x, y, *later)]
