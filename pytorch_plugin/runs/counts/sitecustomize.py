"""Put in front of PYTHONPATH by script_runs.py: at the end of the process that imported this, writes the
software GPU's own counts to the file that TEST_COUNTS_FILE names. Forked children write nothing.
The sitecustomize module that this one hides is run too."""

import atexit
import ctypes
import importlib.machinery
import importlib.util
import json
import os
import sys

FIELDS = ("frame_bytes", "frame_bytes_peak", "malloc_bytes", "malloc_bytes_peak", "used_bytes_peak",
          "frames", "mapped_bytes", "streams", "events", "host_registered_bytes", "kernels",
          "copies", "copied_bytes")


class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in FIELDS]


def write_counts(path, owner):
    if os.getpid() != owner:
        return
    with open("/proc/self/maps") as maps:
        loaded = any(line.rstrip().endswith("/software/libcuda.so.1") for line in maps)
    counts = Counts()
    if not loaded or ctypes.CDLL("libcuda.so.1").firnGpuCounts(0, ctypes.byref(counts)) != 0:
        return
    with open(path, "w") as file:
        json.dump({name: getattr(counts, name) for name in FIELDS}, file)


if "TEST_COUNTS_FILE" in os.environ and "LD_PRELOAD" in os.environ:
    # Children that are started afresh (not forked) are not the process that is counted.
    atexit.register(write_counts, os.environ.pop("TEST_COUNTS_FILE"), os.getpid())


def run_hidden():
    here = os.path.dirname(os.path.abspath(__file__))
    others = [each for each in sys.path if os.path.abspath(each) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


run_hidden()
