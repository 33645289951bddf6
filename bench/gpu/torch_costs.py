"""What calls of PyTorch's allocator take, whichever it is, and what spilling and faulting take:

    torch_costs.py calls LIBCALLS.so TIMES     nanoseconds, as bench/overhead/overhead.py measures
    torch_costs.py spills MIB...               with Firn: blocks of these sizes leave and come back

Prints one line of JSON.
"""

import json
import pathlib
import statistics
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]


def calls(library, times):
    sys.path.insert(0, str(ROOT / "bench/overhead"))
    import overhead
    overhead.LIBRARY, overhead.TIMES = library, int(times)
    overhead.call_figures()


def us(work):
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1e6


def spills(*sizes):
    from firn import _autoload
    plugin = _autoload.plugin()
    plugin.firn_torch_observe()

    def use():
        tensor.add_(1)
        torch.cuda.synchronize()

    def spill():
        plugin.firn_torch_spill_all()
        torch.cuda.synchronize()

    found = {}
    for mib in map(int, sizes):
        tensor = torch.zeros(mib << 18, device="cuda")
        for _ in range(3):  # host memory is had, rings are open
            use(), spill()
        use()
        rounds = [(us(use), us(spill), us(use)) for _ in range(5)]
        resident, out, fault = (statistics.median(each) for each in zip(*rounds))
        found[f"{mib}MiB"] = {
            "resident_us": round(resident, 1), "spill_us": round(out, 1),
            "fault_us": round(fault, 1), "fault_gb_s": round((mib << 20) / fault / 1e3, 3),
            "right": bool((tensor == 3 + 1 + 10).all().item())}
        del tensor
    print(json.dumps(found))


if __name__ == "__main__":
    {"calls": calls, "spills": spills}[sys.argv[1]](*sys.argv[2:])
