"""What calls of PyTorch's allocator take, whichever it is, and what spilling and faulting take:

    torch_costs.py calls LIBCALLS.so TIMES     nanoseconds, of the allocator that there is
    torch_costs.py spills MIB...               with Firn: blocks of these sizes leave and come back

Prints one line of JSON.
"""

import ctypes
import json
import statistics
import sys
import time

import torch

ROUNDS = 5
SIZES = {"512 B": 512, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}
LIVE = (10, 1000, 10_000)
LIVE_MOST = 4096
THIS = 0  # the allocator that this process has


def calls(path, times):
    """Medians of a few rounds, by the library of bench/overhead."""
    library, times, integer = ctypes.CDLL(path), ctypes.c_int64(int(times)), ctypes.c_int64
    for name in ("pair_ns", "live_ns", "operator_ns"):
        getattr(library, name).restype = ctypes.c_double
    library.calls_failure.restype = ctypes.c_char_p
    torch.empty(1, device="cuda")
    library.calls_note_peer()
    library.calls_begin(torch.cuda.device_count())

    def measured(call):
        found = [call() for _ in range(ROUNDS)]
        if min(found) < 0:
            sys.exit(f"torch_costs.py: {library.calls_failure().decode()}")
        return statistics.median(found)

    found = {f"allocate and free {name}": measured(
        lambda size=size: library.pair_ns(THIS, ctypes.c_uint64(size), integer(1), times))
        for name, size in SIZES.items()}
    for live in LIVE:
        found[f"one of {live:,} live, up to 4 KiB"] = measured(lambda live=live: library.live_ns(
            THIS, integer(live), ctypes.c_uint64(LIVE_MOST), True, times))
    for tensors, name in ((0, "a view"), (1, "an operator on one tensor"),
                          (4, "an operator on four tensors")):
        found[name] = measured(lambda tensors=tensors: library.operator_ns(integer(tensors), times))
    print(json.dumps([torch.cuda.get_allocator_backend(), found]))


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
