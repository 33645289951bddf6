"""Bad input, and calls at bad times: an error in torch's own style, never a crash."""

import torch
from _calls import MIB, alone, empty, python, refusal


def call_foreign_pointers():
    delete = torch.cuda.caching_allocator_delete
    pointer = torch.cuda.caching_allocator_alloc(4 * MIB)
    found = [refusal(delete, wrong) for wrong in (4096, pointer + 512, pointer + 1)]
    delete(pointer)
    return found + [refusal(delete, pointer), torch.cuda.memory_allocated()]


def call_what_is_said_of_a_foreign_pointer():
    try:
        torch.cuda.caching_allocator_delete(4096)
    except RuntimeError as error:
        return str(error).split("\n")[0]


def call_host_pointer():
    x = torch.ones(1000)
    return refusal(torch.cuda.caching_allocator_delete, x.data_ptr())


def call_freed_in_a_pool_twice():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        pointer = torch.cuda.caching_allocator_alloc(3 * MIB)
    torch.cuda.caching_allocator_delete(pointer)
    return [refusal(torch.cuda.caching_allocator_delete, pointer), torch.cuda.memory_allocated()]


def call_too_much():
    found = []
    for size in (1 << 34, 1 << 45, 1 << 50):
        try:
            empty(size)
        except torch.cuda.OutOfMemoryError as error:
            words = str(error)
            found.append([words.startswith("CUDA out of memory. Tried to allocate "),
                          "GPU 0 has a total capacity of" in words, "is free" in words])
    return found


def call_negative_sizes():
    return [refusal(torch.cuda.caching_allocator_alloc, -1), refusal(empty, -5)]


def call_observers():
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *told: seen.append(told))
    try:
        empty(1 << 40)
    except torch.cuda.OutOfMemoryError:
        pass
    device, asked, total, free = seen[0]
    return [len(seen), device, asked, total == torch.cuda.mem_get_info()[1], 0 <= free <= total]


@alone()
def call_an_observer_takes_a_snapshot():
    found = []

    def observe(*_):
        found.append(len(torch.cuda.memory._snapshot()["segments"]))
        x = empty(3 * MIB)
        torch.cuda.empty_cache()
        found.append(x.numel())
    torch._C._cuda_attach_out_of_memory_observer(observe)
    kept = empty(30 * MIB)
    refused = refusal(empty, 1 << 40)
    return [found, refused, kept.numel()]


@alone()
def call_an_observer_throws():
    def observe(*_):
        raise KeyError("from the observer")
    torch._C._cuda_attach_out_of_memory_observer(observe)
    found = [refusal(empty, 1 << 40) is not None]
    x = torch.ones(1000, device="cuda")
    return found + [x.sum().item(), torch.cuda.memory_stats()["num_ooms"]]


def call_a_wrong_stream_is_recorded():
    x = empty(3 * MIB)
    outside = torch.cuda.ExternalStream(torch.cuda.Stream().cuda_stream)
    found = [refusal(x.record_stream, outside), refusal(x.record_stream, None)]
    del x
    torch.cuda.synchronize()
    return found


def call_record_stream_of_foreign_memory():
    """Memory that the allocator did not make is left alone."""
    x = torch.ones(1000, device="cuda")
    y = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))
    return refusal(y.record_stream, torch.cuda.Stream())


def made_stream():
    import ctypes
    runtime = ctypes.CDLL("libcudart.so.13")
    stream = ctypes.c_void_p()
    assert runtime.cudaStreamCreate(ctypes.byref(stream)) == 0
    return runtime, stream


def call_memory_outlives_its_stream():
    """Allocated on a program's own stream, freed after that was destroyed."""
    runtime, stream = made_stream()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.value)):
        x = torch.full((4 * MIB,), 3.0, device="cuda")
    torch.cuda.synchronize()
    y = x + 1
    assert runtime.cudaStreamDestroy(stream) == 0
    found = [y.sum().item(), x.sum().item()]
    del x, y
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    z = torch.full((4 * MIB,), 5.0, device="cuda")
    return found + [z.sum().item()]


def call_a_new_stream_at_an_old_address():
    found = []
    for turn in range(20):
        runtime, stream = made_stream()
        with torch.cuda.stream(torch.cuda.ExternalStream(stream.value)):
            x = torch.full((2 * MIB,), float(turn), device="cuda")
            found.append(x.sum().item() / (2 * MIB))
            del x
        runtime.cudaStreamSynchronize(stream)
        assert runtime.cudaStreamDestroy(stream) == 0
    torch.cuda.empty_cache()
    return found


@alone()
def call_fork_after_start():
    import os
    x = torch.ones(MIB, device="cuda")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        words = refusal(torch.ones, 10, device="cuda")
        del x
        os.write(writer, str(words).encode())
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    return [status, os.read(reader, 100).decode(), x.sum().item()]


@alone()
def call_children_of_multiprocessing():
    import torch.multiprocessing as processes
    x = torch.ones(MIB, device="cuda")
    context = processes.get_context("fork")
    child = context.Process(target=print, args=("child",))
    child.start()
    child.join()
    return [child.exitcode, x.sum().item()]


def call_allocation_at_exit():
    return python("""
import torch
class Late:
    def __init__(self):
        self.kept = torch.ones(1000, device="cuda")
    def __del__(self):
        x = torch.ones(1000, device="cuda")
        y = x + self.kept
        del x, y
late = Late()
import atexit
atexit.register(lambda: torch.ones(5 << 20, device="cuda").sum())
print("end")
""")


def call_threads_at_exit():
    """The interpreter ends threads inside torch; C++ may then terminate, in one thread or two."""
    status, output, said = python("""
import itertools, threading, torch
def work(begun):
    for number in itertools.count():
        x = torch.ones(1 << 20, device="cuda")
        del x
        if number == 50:
            begun.set()
torch.ones(1, device="cuda")
begun = [threading.Event() for _ in range(2)]
for each in begun:
    threading.Thread(target=work, args=(each,), daemon=True).start()
for each in begun:
    each.wait()
print("end", flush=True)  # the threads may end the process before its files are flushed
""")
    return [status in (0, -6), output, set(said.splitlines()) <= {
        "terminate called without an active exception", "terminate called recursively"}]


def call_a_pool_at_exit():
    # (These tests preload the driver, so Firn says that it cannot stand in front of it.)
    status, output, errors = python("""
import torch
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    x = torch.ones(1 << 20, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
torch.cuda.memory._record_memory_history()
print("end")
""")
    return status, output, [line for line in errors.splitlines()
                            if not line.startswith("firn: the GPU driver was opened before")]


def call_nothing_before_the_start():
    return python("""
import torch
print(torch.cuda.memory_allocated(), len(torch.cuda.memory_stats()),
      torch.cuda.is_initialized(), torch.cuda.memory_reserved())
torch.cuda.empty_cache()
torch.accelerator.empty_cache() if torch.cuda.is_initialized() else None
""")


def call_sharing_within_the_process():
    x = torch.ones(MIB, device="cuda")
    x.share_memory_()
    return x.is_shared()


def call_ipc_events_and_collect():
    torch.cuda.ipc_collect()
    return True


def call_resizing():
    x = torch.ones(1000, device="cuda")
    x.untyped_storage().resize_(0)
    found = [torch.cuda.memory_allocated()]
    x.untyped_storage().resize_(8 * MIB)
    return found + [torch.cuda.memory_allocated()]


def call_a_sync_in_debug_mode():
    torch.cuda.set_sync_debug_mode("error")
    try:
        x = empty(30 * MIB)
        del x
        return refusal(empty, 40 * MIB)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@alone()
def call_a_pool_released_while_it_is_allocated_into():
    torch.cuda.init()
    pool = torch._C._graph_pool_handle()
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
    x = empty(3 * MIB)
    torch._C._cuda_releasePool(0, pool)
    y = empty(30 * MIB)
    z = empty(100)
    torch._C._cuda_endAllocateToPool(0, pool)
    found = [torch.cuda.memory_allocated()]
    y.fill_(7)
    found.append(y[-1].item())
    del y
    torch.cuda.empty_cache()
    found.append(torch.cuda.memory_allocated())
    del x, z
    torch.cuda.empty_cache()
    return found + [torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]


def call_a_pool_released_twice():
    pool = torch._C._graph_pool_handle()
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
    x = empty(3 * MIB)
    torch._C._cuda_endAllocateToPool(0, pool)
    torch._C._cuda_releasePool(0, pool)
    del x
    torch.cuda.empty_cache()
    return [refusal(torch._C._cuda_releasePool, 0, pool), torch.cuda.memory_allocated()]


def call_middle_of_a_pool_s_block():
    """What is free beside a block, and inside it, is not somebody's to free."""
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        pointer = torch.cuda.caching_allocator_alloc(3 * MIB)
    delete = torch.cuda.caching_allocator_delete
    found = [refusal(delete, pointer + 512), refusal(delete, pointer + 4 * MIB)]
    delete(pointer)
    return found + [refusal(delete, pointer), torch.cuda.memory_allocated()]
