#!/usr/bin/env python3
"""Allocations in the order of a file (eager.py, reserved.py) through the allocator that PyTorch has
here, without kernels: replay.py FILE... Prints a JSON object per file: the peaks of allocated and
of reserved memory over its steps, in bytes. Under Firn also the device memory that it held at most,
and the least budget at which all of it is allocated with nothing moved (by bisection).
"""

import json
import os
import sys

import torch

STREAM = 0
TOLERANCE, PARTS = 1 << 20, 500     # of the least budget: bytes, or a part of it


def replay(events):
    torch.cuda.init()
    addresses = {}
    for event in events:
        if isinstance(event, str):
            continue
        storage, size = event
        if size:
            addresses[storage] = torch.cuda.caching_allocator_alloc(size, 0, STREAM)
        else:
            torch.cuda.caching_allocator_delete(addresses.pop(storage))
    stats = torch.cuda.memory_stats()
    found = {"allocated": stats["allocated_bytes.all.peak"],
             "requested": stats["requested_bytes.all.peak"],
             "reserved": stats["reserved_bytes.all.peak"]}
    if torch.cuda.get_allocator_backend() == "firn":
        import firn
        found["device"] = firn.stats()["devices"][0]["peak_device_bytes"]
        found["spilled"] = firn.stats()["devices"][0]["spilled_bytes"]
    return found


def forked(call):
    """Its result, from a child; None where it failed. (An allocator serves a process once.)"""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            with os.fdopen(writing, "w") as file:
                json.dump(call(), file)
            os._exit(0)
        except torch.OutOfMemoryError:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1):
        sys.exit(f"replay.py: a child ended with status {code}")
    return json.loads(text) if code == 0 else None


def with_budget(events, budget):
    os.environ["FIRN_BUDGET"] = str(budget)
    found = replay(events)
    if found["spilled"]:
        raise SystemExit("replay.py: bytes were spilled")
    return found


def least_budget(events, low, most):
    """Between what is alive and what was held without a budget."""
    high, tolerance = most, max(TOLERANCE, most // PARTS)
    while high - low > tolerance:
        middle = (low + high) // 2
        if forked(lambda at=middle: with_budget(events, at)):
            high = middle
        else:
            low = middle
    return high


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    for path in sys.argv[1:]:
        with open(path, encoding="utf-8") as file:
            events = json.load(file)
        found = forked(lambda: replay(events))
        if found is None:
            sys.exit(f"replay.py: {path}: out of memory")
        if "device" in found:
            found["least"] = least_budget(events, found["requested"], found["device"])
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
