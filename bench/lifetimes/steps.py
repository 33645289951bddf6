"""Runs a training script unchanged and notes, at the end of every optimizer step, the time and what
Firn's statistics say by then: one line of JSON each.

    steps.py FILE [--recompute CLASS] SCRIPT [ARGUMENT...]

--recompute: modules of that class run under torch.utils.checkpoint.
"""

import json
import runpy
import sys
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint


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


def recompute(class_name):
    """Outermost ones: within a checkpoint there are no others."""
    plain, inside = torch.nn.Module.__call__, False

    def call(module, *args, **words):
        nonlocal inside
        if type(module).__name__ != class_name or inside or not torch.is_grad_enabled():
            return plain(module, *args, **words)
        inside = True
        try:
            return checkpoint(plain, module, *args, use_reentrant=False, **words)
        finally:
            inside = False

    torch.nn.Module.__call__ = call


def main():
    path, *rest = sys.argv[1:]
    if rest[0] == "--recompute":
        recompute(rest[1])
        rest = rest[2:]
    script, *arguments = rest
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
