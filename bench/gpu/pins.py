"""What stays on the GPU while a job runs, and why: asked of Firn where it is in this process. (At
the end of the process the memory is free, and the statistics say nothing of it.)"""

import sys
import time

HELD = "held by operators that are running"  # as allocator/engine/no_room.cpp says it
PASSES_S = 2.0  # a hold that no operator has is over by then, or is never given back

_most = {}


def _pinned(firn):
    """No operator runs now; what a first launch wrote may still be looked at by Firn's thread, which
    holds it meanwhile, and is late on a busy machine."""
    deadline = time.monotonic() + PASSES_S
    while True:
        pinned = firn.stats()["devices"][0]["pinned"]
        if all(pin["reason"] != HELD for pin in pinned) or time.monotonic() > deadline:
            return pinned
        time.sleep(.02)


def sample():
    """Called now and then while the job's memory is alive."""
    firn = sys.modules.get("firn")
    if firn is None or not firn.enabled():
        return
    for pin in _pinned(firn):
        _most[pin["reason"]] = max(_most.get(pin["reason"], 0), pin["bytes"])


def most():
    """{reason: the most bytes that were seen}; None without Firn."""
    firn = sys.modules.get("firn")
    return dict(_most) if firn is not None and firn.enabled() else None
