"""torch's own settings, each in a process of its own."""

import torch
from _calls import MIB, alone, empty, refusal, statistics


def call_backend_is_named():
    return torch.cuda.get_allocator_backend() in ("native", "firn")


def call_settings_while_running():
    change = torch._C._accelerator_setAllocatorSettings
    found = [refusal(change, "max_split_size_mb:40"), refusal(change, "no_such_key:1"),
             refusal(change, "expandable_segments:maybe"), refusal(change, "max_split_size_mb:1"),
             refusal(change, "garbage_collection_threshold:0.5"),
             refusal(change, "roundup_power2_divisions:4")]
    refusal(change, "")
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    change("garbage_collection_threshold:0.8")
    x = empty(10 * MIB)
    del x
    return [found, sorted(settings)]


def kept(size=30 * MIB):
    x = empty(size)
    y = empty(size * 2)
    del x
    return [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()], y


@alone("max_split_size_mb:64")
def call_max_split_size():
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    return [kept()[0], settings["PYTORCH_CUDA_ALLOC_CONF"], settings["max_split_size"],
            torch.cuda.memory_stats()["max_split_size"]]


@alone("expandable_segments:True")
def call_expandable_segments():
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    return [kept()[0], settings["expandable_segments"]]


@alone("garbage_collection_threshold:0.6")
def call_garbage_collection():
    return [kept()[0], torch.cuda.memory._snapshot()["allocator_settings"]
            ["garbage_collection_threshold"]]


@alone("roundup_power2_divisions:4")
def call_roundup():
    found = []
    for size in (5 * MIB, 9 * MIB, 20 * MIB + 1, 70 * MIB):
        x = empty(size)
        stats = torch.cuda.memory_stats()
        found.append([stats[n] for n in ("allocated_bytes.all.current",
                                         "requested_bytes.all.current")])
        del x
    return found


@alone("roundup_power2_divisions:[16:2,256:4,>:8]")
def call_roundup_by_size():
    found = []
    for size in (5 * MIB, 20 * MIB + 1, 300 * MIB):
        before = torch.cuda.memory_allocated()
        x = empty(size)
        found.append(torch.cuda.memory_allocated() - before)
        del x
    return found


@alone("pinned_use_cuda_host_register:True,pinned_num_register_threads:2")
def call_pinned_by_registering():
    x = torch.ones(MIB).pin_memory()
    return [x.is_pinned(), x.to("cuda", non_blocking=True).sum().item()]


@alone("pinned_use_background_threads:True")
def call_pinned_background_threads():
    x = torch.ones(MIB).pin_memory()
    return [x.is_pinned(), x.to("cuda", non_blocking=True).sum().item()]


@alone("pinned_reserve_segment_size_mb:8")
def call_pinned_reserve():
    x = torch.ones(MIB).pin_memory()
    return [x.is_pinned(), x.to("cuda", non_blocking=True).sum().item()]


@alone("release_lock_on_cudamalloc:True")
def call_release_lock():
    return kept()[0]


@alone("graph_capture_record_stream_reuse:True")
def call_reuse_in_captures():
    return kept()[0]


@alone("large_segment_size_mb:40,max_non_split_rounding_mb:50")
def call_segment_sizes():
    return kept()[0]


@alone("per_process_memory_fraction:0.25")
def call_fraction_from_the_start():
    return [torch.cuda.get_per_process_memory_fraction(), refusal(empty, 600 * MIB)]


@alone("no_such_key:3")
def call_unknown_key():
    return refusal(empty, 10)


@alone("max_split_size_mb:oops")
def call_malformed_value():
    return refusal(empty, 10)


@alone(PYTORCH_NO_CUDA_MEMORY_CACHING="1")
def call_no_caching():
    free = torch.cuda.mem_get_info()[0]
    x = torch.full((30 * MIB,), 2.0, device="cuda")
    y = x + 1
    found = [y.sum().item() == 90 * MIB, free - torch.cuda.mem_get_info()[0] >= 240 * MIB]
    del x, y
    found += [torch.cuda.mem_get_info()[0] == free, torch.cuda.memory_allocated(),
              torch.cuda.memory_reserved()]
    pointer = torch.cuda.caching_allocator_alloc(3 * MIB)
    found.append(torch.cuda.memory_allocated())
    torch.cuda.caching_allocator_delete(pointer)
    return found


def call_disabled_and_enabled_again():
    before = torch.cuda.memory_allocated()
    x = torch.full((MIB,), 1.0, device="cuda")
    free = torch.cuda.mem_get_info()[0]
    torch.cuda.caching_allocator_enable(False)
    y = torch.full((16 * MIB,), 2.0, device="cuda")
    found = [torch.cuda.memory_allocated() - before, y.sum().item()]
    found.append(free - torch.cuda.mem_get_info()[0] >= 64 * MIB)
    torch.cuda.caching_allocator_enable(True)
    z = y + x[0]
    y.record_stream(torch.cuda.Stream())
    found.append(z.sum().item())
    del x, y, z
    return found + [torch.cuda.memory_allocated() - before]


def call_without_a_cache_for_a_while():
    """Of torch 2.15 and later."""
    if not hasattr(torch.cuda.memory, "caching_allocator_disabled"):
        return []
    before = torch.cuda.memory_allocated()
    with torch.cuda.memory.caching_allocator_disabled():
        x = torch.full((16 * MIB,), 2.0, device="cuda")
    y = torch.full((MIB,), 1.0, device="cuda")
    found = [torch.cuda.memory_allocated() - before, x.sum().item() + y.sum().item()]
    del x, y
    return found + [torch.cuda.memory_allocated() - before]


def call_mem_get_info():
    free, total = torch.cuda.mem_get_info()
    x = empty(64 * MIB)
    return [total, free - torch.cuda.mem_get_info()[0] == 64 * MIB, x.numel()]


def call_current_allocator():
    allocator = torch.cuda.memory._get_current_allocator()
    changed = refusal(torch.cuda.memory.change_current_allocator, allocator)
    return [type(allocator).__name__, changed]


def call_raw_allocations():
    side = torch.cuda.Stream()
    found = []
    for stream in (None, side, side.cuda_stream):
        pointer = torch.cuda.caching_allocator_alloc(3 * MIB, stream=stream)
        found.append([pointer != 0, torch.cuda.memory_allocated()])
        torch.cuda.caching_allocator_delete(pointer)
    nothing = torch.cuda.caching_allocator_alloc(0)
    torch.cuda.caching_allocator_delete(nothing)
    return found + [nothing, torch.cuda.memory_allocated()]


def call_locks():
    if hasattr(torch.cuda.memory, "_free_mutex"):  # not in 2.12
        with torch.cuda.memory._free_mutex():
            pass
    return True


def call_lazy_clones():
    """Copy on write: the copy is made by the allocator."""
    x = torch.arange(4 * MIB, device="cuda")
    y = torch._lazy_clone(x)
    y += 1
    return [x[-1].item(), y[-1].item(), statistics("allocation.all.current")]


def call_blas_workspaces():
    x = torch.randn(256, 256, device="cuda")
    (x @ x).sum().item()
    torch._C._cuda_clearCublasWorkspaces()
    return True


def call_peer_access():
    return torch.cuda.device_count() < 2 or torch.cuda.can_device_access_peer(0, 1)
