"""Runs a training script unchanged, one optimizer step at a time: writes a line of JSON to
IN_TURN_OUT (a descriptor) at the end of each, and goes on when a byte comes from IN_TURN_IN.
in_turn.py is at the other ends.

    steps.py SCRIPT [ARGUMENT...]
"""

import json
import os
import runpy
import sys
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

# What Firn counts that must not grow where nothing has to move.
COUNTED = ("spilled_bytes", "faulted_bytes", "prefetched_bytes", "clean_dropped_bytes", "evictions",
           "faults", "stall_s", "plan_s", "peak_device_bytes", "peak_allocated_bytes",
           "rounding_bytes", "maps", "watching", "period_found", "device_bytes")


def counted():
    try:
        import firn
        from firn import _autoload
    except ImportError:
        return {}
    devices = firn.stats().get("devices", [])
    if not devices:
        return {}
    return {**{name: devices[0][name] for name in COUNTED},
            "written_bytes": firn.stats()["store"]["written_bytes"],
            "observing": bool(_autoload.plugin().firn_torch_observing())}


def main():
    out = os.fdopen(int(os.environ.pop("IN_TURN_OUT")), "w")
    turns = int(os.environ.pop("IN_TURN_IN"))
    begin = [time.perf_counter(), time.process_time()]

    def end_of_step(*_):
        torch.cuda.synchronize()
        note = {"wall_s": time.perf_counter() - begin[0], "cpu_s": time.process_time() - begin[1],
                "allocated_peak": torch.cuda.max_memory_allocated(),
                "reserved_peak": torch.cuda.max_memory_reserved(), **counted()}
        out.write(json.dumps(note) + "\n")
        out.flush()
        if not os.read(turns, 1):
            os._exit(0)  # enough steps
        begin[:] = time.perf_counter(), time.process_time()

    register_optimizer_step_post_hook(end_of_step)
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
