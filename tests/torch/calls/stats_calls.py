"""Statistics: their keys, and what they count."""

import torch
from _calls import MIB, empty, free_while_used, refusal, settle, statistics

POOLS = ("all", "small_pool", "large_pool")
FIELDS = ("current", "peak", "allocated", "freed")


def four(name, pool="all"):
    found = torch.cuda.memory_stats()
    return [found["%s.%s.%s" % (name, pool, field)] for field in FIELDS]


def call_keys():
    return sorted(torch.cuda.memory_stats())


def call_keys_of_the_accelerator():
    return sorted(torch.accelerator.memory_stats())


def call_nested_keys():
    nested = torch.cuda.memory_stats_as_nested_dict()
    return {name: sorted(value) if isinstance(value, dict) else "number"
            for name, value in sorted(nested.items())}


def call_sizes_are_rounded_alike():
    found = []
    for size in (1, 511, 512, 513, 1000, 5000, 100_000, 300_001, 700_000, MIB - 1, MIB, MIB + 1,
                 3 * MIB + 5, 10 * MIB, 11 * MIB + 1, 50 * MIB):
        before = torch.cuda.memory_allocated()
        kept = empty(size)
        found.append([size, torch.cuda.memory_allocated() - before])
        del kept
    return found


def call_counts_of_every_pool():
    kept = [empty(size) for size in (100, 600_000, 2 * MIB, 30 * MIB)]
    gone = [empty(size) for size in (200, 40 * MIB)]
    del gone
    found = {"%s.%s" % (name, pool): four(name, pool)
             for name in ("allocation", "active", "requested_bytes") for pool in POOLS}
    del kept
    return found


def call_peaks_of_all_are_not_sums():
    """The peaks of the small and of the large pool at different times."""
    small = [empty(1000) for _ in range(10)]
    del small
    large = empty(4 * MIB)
    del large
    return [four(name) for name in ("allocation", "active", "allocated_bytes", "requested_bytes")]


def call_peaks_after_reset():
    first = empty(8 * MIB)
    del first
    second = empty(2 * MIB)
    torch.cuda.reset_peak_memory_stats()
    before = [four(name) for name in ("allocation", "allocated_bytes", "active_bytes")]
    torch.cuda.reset_accumulated_memory_stats()
    after = [four(name) for name in ("allocation", "allocated_bytes", "active_bytes")]
    del second
    return [before, after, four("allocation"), four("active")]


def call_active_waits_for_other_streams():
    free_while_used(4 * MIB)
    names = ("allocation.all.current", "active.all.current", "active_bytes.all.current",
             "active_bytes.large_pool.current", "active.all.freed", "allocation.all.freed")
    waiting = statistics(*names)
    torch.cuda.synchronize()
    other = empty(512)
    over = statistics(*names)
    del other
    return [waiting, over]


def call_peak_of_active_while_one_waits():
    free_while_used(4 * MIB)
    y = empty(6 * MIB)
    found = [four("active_bytes")[:2], four("active")[:2], four("allocated_bytes")[:2]]
    torch.cuda.synchronize()
    del y
    return found


def call_segments_and_driver_calls():
    names = ("segment.all.current", "segment.large_pool.allocated", "num_device_alloc",
             "num_device_free", "segment.all.freed", "num_alloc_retries", "num_ooms")
    x = [empty(24 * MIB), empty(30 * MIB)]
    first = statistics(*names)
    del x
    torch.cuda.empty_cache()
    second = statistics(*names)
    torch.cuda.reset_accumulated_memory_stats()
    return [first, second, statistics(*names)]


def call_reserved():
    x = empty(24 * MIB)
    found = [torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved(),
             four("reserved_bytes", "large_pool")[0]]
    del x
    kept = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    return [found, kept, torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()]


def call_oversize_without_a_limit():
    x = empty(200 * MIB)
    del x
    found = torch.cuda.memory_stats()
    return {name: found[name] for name in sorted(found) if name.startswith("oversize")}


def call_accelerator_memory():
    x = empty(3 * MIB)
    found = [torch.accelerator.memory_allocated(), torch.accelerator.max_memory_allocated(),
             torch.accelerator.memory_reserved() >= 3 * MIB]
    del x
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()
    torch.accelerator.reset_accumulated_memory_stats()
    free, total = torch.accelerator.get_memory_info()
    return [found, torch.accelerator.memory_reserved(), torch.accelerator.max_memory_allocated(),
            total == torch.cuda.mem_get_info()[1], 0 < free <= total]


def call_summary():
    x = empty(3 * MIB)
    lines = torch.cuda.memory_summary(abbreviated=True).splitlines()
    del x
    return [line.split("|")[1].strip() for line in lines if line.count("|") > 4]


def call_deprecated_names():
    torch.cuda.reset_max_memory_allocated()
    torch.cuda.reset_max_memory_cached()
    return [torch.cuda.memory_cached() >= 0, torch.cuda.max_memory_cached() >= 0]


def call_wrong_devices():
    return [refusal(torch.cuda.memory_stats, 7), refusal(torch.cuda.memory_allocated, 7),
            refusal(torch.cuda.reset_peak_memory_stats, 7),
            refusal(torch.cuda.reset_accumulated_memory_stats, 7),
            refusal(torch._C._cuda_resetPeakMemoryStats, 77),
            refusal(torch._C._cuda_memoryStats, 77),
            refusal(torch.cuda.get_per_process_memory_fraction, 7),
            refusal(torch.cuda.set_per_process_memory_fraction, 0.5, 7),
            refusal(torch.accelerator.memory_stats, 7)]


def call_host_memory_statistics():
    x = torch.empty(5 * MIB, dtype=torch.uint8).pin_memory()
    found = torch.cuda.host_memory_stats()
    del x
    torch.cuda.reset_peak_host_memory_stats()
    torch.cuda.reset_accumulated_host_memory_stats()
    return [sorted(found), found["active_bytes.current"] >= 5 * MIB]


def call_out_of_memory_is_counted():
    refused = refusal(empty, 1 << 40)
    found = statistics("num_ooms", "num_alloc_retries")
    torch.cuda.reset_accumulated_memory_stats()
    return [refused, found, statistics("num_ooms", "num_alloc_retries")]


def call_more_than_an_exabyte():
    try:
        torch.empty(1 << 61, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        return str(error).split("\n")[0]


def call_fraction():
    found = [torch.cuda.get_per_process_memory_fraction()]
    torch.cuda.set_per_process_memory_fraction(0.25)
    found += [torch.cuda.get_per_process_memory_fraction(), refusal(empty, 600 * MIB)]
    torch.cuda.set_per_process_memory_fraction(1.0)
    found.append(refusal(empty, 600 * MIB))
    settle()
    return found
