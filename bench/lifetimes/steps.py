"""Runs a training script unchanged and notes, at the end of every optimizer step, the time and what
Firn's statistics say by then: one line of JSON each.

    steps.py FILE SCRIPT [ARGUMENT...]
"""

import json
import runpy
import sys
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


def noted():
    note = {"time_s": time.perf_counter(), "peak_bytes": torch.cuda.max_memory_allocated()}
    try:
        import firn
    except ImportError:
        return note
    for device in firn.stats().get("devices", []):
        note.update({name: device[name] for name in (
            "stall_s", "spilled_bytes", "faulted_bytes", "prefetched_bytes", "forwarded_bytes",
            "period_found", "plan_s")})
    return note


def main():
    path, script, *arguments = sys.argv[1:]
    with open(path, "w") as out:
        def note(*_):
            out.write(json.dumps(noted()) + "\n")
            out.flush()

        register_optimizer_step_post_hook(note)
        sys.argv = [script, *arguments]
        sys.path.insert(0, script.rpartition("/")[0])
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
