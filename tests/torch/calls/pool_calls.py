"""torch.cuda.MemPool, and the calls below it."""

import ctypes
import os
import subprocess
import tempfile

import torch
from _calls import MIB, alone, empty, refusal, settle

DEVICE = 0
SOURCE = """
#include <cstddef>
#include <dlfcn.h>
extern "C" int allocated = 0, freed = 0;
using Allocate = int (*)(void**, size_t);
using Free = int (*)(void*);
extern "C" void* take(size_t bytes, int, void*) {
  void* pointer = nullptr;
  ((Allocate)dlsym(RTLD_DEFAULT, "cudaMalloc"))(&pointer, bytes);
  ++allocated;
  return pointer;
}
extern "C" void give(void* pointer, size_t, int, void*) {
  ++freed;
  ((Free)dlsym(RTLD_DEFAULT, "cudaFree"))(pointer);
}
"""


def own_allocator():
    """An allocator of a program's own, and its library with two counters."""
    folder = tempfile.mkdtemp()
    source, library = os.path.join(folder, "own.cpp"), os.path.join(folder, "own.so")
    with open(source, "w") as file:
        file.write(SOURCE)
    subprocess.run(["c++", "-shared", "-fPIC", "-o", library, source], check=True)
    loaded = ctypes.CDLL(library)
    counts = lambda: [ctypes.c_int.in_dll(loaded, name).value for name in ("allocated", "freed")]
    return torch.cuda.memory.CUDAPluggableAllocator(library, "take", "give"), counts


def owners():
    """How many segments belong to private pools, and how many do not."""
    private = [tuple(s["segment_pool_id"]) != (0, 0) for s in torch.cuda.memory_snapshot()]
    return [private.count(True), private.count(False)]


def call_statistics_of_a_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = empty(5 * MIB)
        y = empty(1000)
    found = [torch.cuda.memory_allocated()]
    del x, y
    found.append(torch.cuda.memory_allocated())
    with torch.cuda.use_mem_pool(pool):
        z = empty(4 * MIB + 5)
    stats = torch.cuda.memory_stats()
    found += [torch.cuda.memory_allocated(), stats["requested_bytes.all.current"],
              stats["allocation.all.allocated"], stats["allocation.all.freed"],
              stats["allocation.all.peak"]]
    del z
    found.append(torch.cuda.memory_allocated())
    del pool
    return found


def call_blocks_of_a_pool_in_a_snapshot():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = empty(30 * MIB)
    address = x.data_ptr()
    states = lambda: [block["state"] for segment in pool.snapshot() for block in segment["blocks"]
                      if block["address"] == address]
    found = [states()]
    del x
    found += [states(), torch.cuda.memory_stats()["active_bytes.all.current"]]
    del pool
    return found


def call_use_counts():
    pool = torch.cuda.MemPool()
    found = [pool.use_count()]
    with torch.cuda.use_mem_pool(pool):
        found.append(pool.use_count())
        x = empty(100)
    found.append(pool.use_count())
    del x
    return found


def call_a_pool_goes_with_its_memory():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = empty(30 * MIB)
    del x
    found = [owners()[0]]
    torch.cuda.empty_cache()
    found.append(owners()[0] > 0)
    del pool
    return found + [owners()[0], torch.cuda.memory_reserved()]


def call_a_pool_goes_before_its_memory():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((7 * MIB,), 3.0, device="cuda")
    del pool
    torch.cuda.empty_cache()
    found = [x.sum().item() == 21 * MIB, torch.cuda.memory_allocated()]
    del x
    torch.cuda.empty_cache()
    return found + [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]


def call_emptying_a_pool():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = empty(30 * MIB)
        del x
        torch.cuda.empty_cache()
        return owners()[0]


def call_pools_within_pools():
    one, two = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(one):
        a = empty(3 * MIB)
        with torch.cuda.use_mem_pool(two):
            b = empty(3 * MIB)
        c = empty(3 * MIB)
    found = {tuple(p.id): sum(block["state"] == "active_allocated" for s in p.snapshot()
                              for block in s["blocks"]) for p in (one, two)}
    del a, b, c
    return list(found.values())


def call_another_thread_does_not_use_the_pool():
    import threading
    pool = torch.cuda.MemPool()
    made = []
    with torch.cuda.use_mem_pool(pool):
        thread = threading.Thread(target=lambda: made.append(empty(3 * MIB)))
        thread.start()
        thread.join()
    return len(pool.snapshot())


def call_an_allocator_of_its_own():
    allocator, counts = own_allocator()
    pool = torch.cuda.MemPool(allocator.allocator())
    found = [counts()]
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((30 * MIB // 4,), 2.0, device="cuda")
    found += [counts(), x.sum().item(), len(pool.snapshot()), torch.cuda.memory_allocated()]
    y = x + 1  # outside the pool
    found += [y.sum().item(), counts()]
    x.record_stream(torch.cuda.Stream())
    del x, y
    torch.cuda.synchronize()
    found += [torch.cuda.memory_allocated(), counts()]
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((30 * MIB // 4,), 4.0, device="cuda")
    found += [counts(), x.sum().item()]
    del x, pool
    torch.cuda.empty_cache()
    return found + [counts(), torch.cuda.memory_reserved()]


@alone()
def call_a_pool_used_on_out_of_memory():
    total = torch.cuda.mem_get_info()[1]
    found = []
    for use in (False, True):
        pool = torch.cuda.MemPool(use_on_oom=use)
        with torch.cuda.use_mem_pool(pool):
            x = empty(total // 8 * 5)
        del x
        found.append(refusal(empty, total // 8 * 5))
        del pool
        settle()
    return found


def call_no_split():
    pool = torch.cuda.MemPool(no_split=True)
    with torch.cuda.use_mem_pool(pool):
        x = empty(30 * MIB)
        del x
        y = empty(3 * MIB)
        z = empty(3 * MIB)
    sizes = [len(segment["blocks"]) for segment in pool.snapshot()]
    del y, z
    return max(sizes)


def call_below_mem_pools():
    id_of = torch._C._graph_pool_handle()
    torch._C._cuda_beginAllocateCurrentThreadToPool(DEVICE, id_of)
    x = empty(3 * MIB)
    twice = refusal(torch._C._cuda_beginAllocateCurrentThreadToPool, DEVICE, id_of)
    torch._C._cuda_endAllocateToPool(DEVICE, id_of)
    again = refusal(torch._C._cuda_endAllocateToPool, DEVICE, id_of)
    held = torch._C._cuda_checkPoolLiveAllocations(DEVICE, id_of, {x.data_ptr()})
    wrong = torch._C._cuda_checkPoolLiveAllocations(DEVICE, id_of, {12345})
    del x
    torch._C._cuda_releasePool(DEVICE, id_of)
    torch._C._cuda_releasePool(DEVICE, id_of)
    return [twice, again, held, wrong]


def call_pools_on_a_stream():
    id_of = torch._C._graph_pool_handle()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch._C._cuda_beginAllocateCurrentStreamToPool(DEVICE, id_of)
        x = empty(3 * MIB)
    y = empty(3 * MIB)
    torch._C._cuda_endAllocateToPool(DEVICE, id_of)
    found = [len(torch.cuda.memory_snapshot(id_of)), owners()[1] > 0]
    del x, y
    torch._C._cuda_releasePool(DEVICE, id_of)
    return found


def call_unknown_pools():
    return [refusal(torch._C._cuda_endAllocateToPool, DEVICE, (0, 4711)),
            refusal(torch._C._cuda_releasePool, DEVICE, (0, 4711)),
            refusal(torch._C._cuda_checkPoolLiveAllocations, DEVICE, (0, 4711), set()),
            refusal(torch._C._cuda_getCheckpointState, DEVICE, (0, 4711)),
            len(torch.cuda.memory_snapshot((0, 4711)))]


def call_smaller_blocks_from_a_large_one():
    """What is freed in a pool serves later allocations of that pool, also smaller ones."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = empty(40 * MIB)
        del x
        before = torch.cuda.memory_reserved()
        kept = [empty(10 * MIB) for _ in range(4)]
        grown = torch.cuda.memory_reserved() - before
    del kept
    return grown


def call_a_pool_with_history():
    torch.cuda.memory._record_memory_history()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = empty(30 * MIB)
        del x
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    found = [[e["action"], tuple(e["segment_pool_id"]) == tuple(pool.id)] for e in entries
             if e["action"] in ("alloc", "free_requested", "free_completed")] \
        if "segment_pool_id" in entries[0] else [e["action"] for e in entries]
    torch.cuda.memory._record_memory_history(enabled=None)
    return found
