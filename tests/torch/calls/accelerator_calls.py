"""torch.accelerator beyond statistics, and what of torch.cuda.memory the other files leave."""

import torch
from _calls import MIB, empty, refusal

accelerator = torch.accelerator


def call_the_current_device():
    return [accelerator.is_available(), str(accelerator.current_accelerator()),
            accelerator.device_count() == torch.cuda.device_count(),
            accelerator.current_device_index(), accelerator.current_device_idx()]


def call_devices_are_set():
    accelerator.set_device_index(0)
    accelerator.set_device_idx(0)
    with accelerator.device_index(0):
        x = empty(3 * MIB)
    return [x.device.index, refusal(accelerator.set_device_index, 77),
            refusal(accelerator.memory_allocated, 77), refusal(accelerator.memory_stats, 77)]


def call_what_a_device_can():
    return refusal(accelerator.get_device_capability)


def call_streams_of_the_accelerator():
    side = torch.Stream("cuda")
    before = accelerator.current_stream()
    accelerator.set_stream(side)
    x = torch.full((MIB,), 2.0, device="cuda")
    inside = accelerator.current_stream() == side
    accelerator.set_stream(before)
    before.wait_stream(side)
    x.record_stream(before)
    total = x.sum().item()
    accelerator.synchronize()
    return [inside, total, accelerator.current_stream() == before]


def call_memory_of_the_accelerator():
    x = empty(24 * MIB)
    free, total = accelerator.get_memory_info()
    found = [accelerator.memory_allocated(), total == torch.cuda.mem_get_info()[1],
             free == torch.cuda.mem_get_info()[0], accelerator.memory_reserved() >= 24 * MIB]
    del x
    accelerator.empty_cache()
    found += [accelerator.max_memory_allocated(), accelerator.memory_reserved(),
              accelerator.max_memory_reserved() >= 24 * MIB]
    accelerator.reset_peak_memory_stats()
    accelerator.reset_accumulated_memory_stats()
    return found + [accelerator.max_memory_allocated(),
                    accelerator.memory_stats()["allocation.all.allocated"]]


def call_host_memory_stats():
    x = torch.ones(MIB).pin_memory()
    torch.cuda.memory.reset_accumulated_host_memory_stats()
    y = torch.ones(MIB).pin_memory()
    nested = torch.cuda.memory.host_memory_stats_as_nested_dict()
    flat = torch.cuda.memory.host_memory_stats()
    torch.cuda.memory.reset_peak_host_memory_stats()
    return [x.is_pinned(), y.is_pinned(), sorted(nested), len(flat),
            nested["allocations"]["allocated"]]


def call_the_host_cache_is_emptied():
    """Of torch 2.15 and later."""
    if not hasattr(accelerator, "empty_host_cache"):
        return []
    x = torch.ones(MIB).pin_memory()
    del x
    accelerator.empty_host_cache()
    return torch.cuda.memory.host_memory_stats()["allocated_bytes.current"]


def call_a_graph_of_the_accelerator():
    """Of torch 2.15 and later, which has none for CUDA so far."""
    return refusal(accelerator.Graph) if hasattr(accelerator, "Graph") else []


def call_processes_on_the_device():
    return isinstance(torch.cuda.list_gpu_processes(), str)


def call_settings_by_their_older_name():
    change = torch.cuda.memory._set_allocator_settings
    found = [refusal(change, "max_split_size_mb:40"), refusal(change, "no_such_key:1")]
    change("")
    return found


def call_usage_is_drawn():
    """By torch's own memory_viz."""
    from torch.cuda import _memory_viz
    torch.cuda.memory._record_memory_history()
    x = empty(5 * MIB)
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    pages = [_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot)]
    return [["</script>" in page and len(page) > 1000 for page in pages],
            "5.0MiB" in _memory_viz.segsum(snapshot), "alloc" in _memory_viz.trace(snapshot),
            x.numel()]
