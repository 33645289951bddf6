"""What torch.profiler and torch.cuda._memory_viz are told of memory."""

import json

import torch
from _calls import MIB, alone, empty


def memory_events(function):
    """[bytes] of each event of memory on the GPU, in the order of time."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = [event for event in profiler.profiler.kineto_results.events()
              if event.name() == "[memory]" and event.device_type().name == "CUDA"]
    return [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]


@alone()
def call_memory_in_a_profile():
    def work():
        x = empty(30 * MIB)
        y = empty(3 * MIB)
        del x
        z = empty(512)
        del y, z
    return memory_events(work)


@alone()
def call_memory_of_pools_in_a_profile():
    pool = torch.cuda.MemPool()

    def work():
        with torch.cuda.use_mem_pool(pool):
            x = empty(30 * MIB)
            y = empty(3 * MIB + 100)
            del x, y
    return memory_events(work)


@alone()
def call_totals_in_a_profile():
    """What is allocated, as each event says it."""
    from torch.profiler import ProfilerActivity, profile
    kept = empty(8 * MIB)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        x = empty(30 * MIB)
        del x
    totals = []

    def walk(events):
        for event in events:
            if event.tag.name == "Allocation":
                fields = event.extra_fields
                if fields.device.type == "cuda":
                    totals.append([fields.alloc_size, fields.total_allocated])
            walk(event.children)
    walk(profiler.profiler.kineto_results.experimental_event_tree())
    return [totals, kept.numel()]


@alone()
def call_who_asked_for_a_segment():
    """Natively only segments that are one block still know it."""
    memory = torch.cuda.memory
    found = []
    for context in ("alloc", "all", "state"):
        torch.cuda.empty_cache()
        memory._record_memory_history(context=context, stacks="python")
        kept = [empty(512), empty(30 * MIB)]
        segments = sorted(memory._snapshot()["segments"], key=lambda each: each["total_size"])
        found.append(["call_who_asked_for_a_segment" in json.dumps(each["frames"])
                      for each in segments])
        del kept
        memory._record_memory_history(enabled=None)
    return found
