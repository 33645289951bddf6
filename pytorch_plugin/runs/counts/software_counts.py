"""What the software GPU counted by itself, in the process that has it loaded (FirnGpuCounts in
include/firn/software_gpu.h)."""

import ctypes

FIELDS = ("frame_bytes", "frame_bytes_peak", "malloc_bytes", "malloc_bytes_peak", "used_bytes_peak",
          "frames", "mapped_bytes", "streams", "events", "host_registered_bytes", "kernels",
          "copies", "copied_bytes", "copied_to_device_bytes", "copied_to_host_bytes")


class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in FIELDS]


def read(device=0):
    """{field: number}, or None where the driver is another one or knows no such device."""
    with open("/proc/self/maps") as maps:
        if not any(line.rstrip().endswith("/software/libcuda.so.1") for line in maps):
            return None
    counts = Counts()
    if ctypes.CDLL("libcuda.so.1").firnGpuCounts(device, ctypes.byref(counts)) != 0:
        return None
    return {name: getattr(counts, name) for name in FIELDS}


def restart_peaks(device=0):
    """Restarts the peaks of `device` at what is held now."""
    ctypes.CDLL("libcuda.so.1").firnGpuResetPeaks(device)
