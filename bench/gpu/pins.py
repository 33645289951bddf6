"""What stays on the GPU while a job runs, and why: asked of Firn where it is in this process. (At
the end of the process the memory is free, and the statistics say nothing of it.)"""

import sys

_most = {}


def sample():
    """Called now and then while the job's memory is alive."""
    firn = sys.modules.get("firn")
    if firn is None or not firn.enabled():
        return
    for pin in firn.stats()["devices"][0]["pinned"]:
        _most[pin["reason"]] = max(_most.get(pin["reason"], 0), pin["bytes"])


def most():
    """{reason: the most bytes that were seen}; None without Firn."""
    firn = sys.modules.get("firn")
    return dict(_most) if firn is not None and firn.enabled() else None
