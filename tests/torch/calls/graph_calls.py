"""Memory of CUDA graphs: their pools, and checkpoints of a pool's state."""

import torch
from _calls import MIB, alone, empty, is_firn, refusal

DEVICE = 0


def captured(function, pool=None):
    """(graph, what function returned, its pool) of a capture on a side stream."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(*([pool] if pool else []))
        result = function()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph, result, graph.pool()


def pool_blocks(pool):
    """The sizes of the pool's live blocks of at least 1 MiB."""
    return sorted(block["size"] for segment in torch.cuda.memory_snapshot(pool)
                  for block in segment["blocks"]
                  if block["size"] >= MIB and block["state"] == "active_allocated")


def call_memory_of_a_graph():
    x = torch.ones(2 * MIB, device="cuda")
    graph, y, pool = captured(lambda: x * 2)
    found = [torch.cuda.memory_allocated()]
    graph.replay()
    found.append(y.sum().item())
    del y
    found.append(torch.cuda.memory_allocated())
    del graph
    torch.cuda.empty_cache()
    return found + [len(torch.cuda.memory_snapshot(pool))]


def call_results_after_the_graph():
    x = torch.ones(2 * MIB, device="cuda")
    graph, y, _ = captured(lambda: x + 4)
    graph.replay()
    graph.reset()
    del graph
    z = torch.zeros(2 * MIB, device="cuda")
    return [y.sum().item(), z.sum().item(), torch.cuda.memory_allocated()]


def call_graphs_that_share_a_pool():
    x = torch.ones(2 * MIB, device="cuda")
    first, y, pool = captured(lambda: x * 3)
    second, z, same = captured(lambda: y + 1, pool)
    first.replay()
    second.replay()
    found = [pool == same, z.sum().item()]
    del first, y
    second.replay()
    found.append(torch.cuda.memory_allocated())
    return found


def call_temporaries_are_reused_in_a_graph():
    x = torch.ones(4 * MIB, device="cuda")

    def work():
        y = x
        for _ in range(6):
            y = y + 1
        return y
    before = torch.cuda.memory_allocated()
    graph, y, pool = captured(work)
    graph.replay()
    found = [y[0].item(), torch.cuda.memory_allocated() - before]
    return found + [sum(segment["total_size"] for segment in torch.cuda.memory_snapshot(pool))
                    <= 2 * 16 * MIB]


def call_a_failed_capture():
    def work():
        empty(3 * MIB)
        raise ValueError("in the middle")
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            work()
    except ValueError:
        pass
    del graph
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def call_record_stream_in_a_capture():
    x = torch.ones(4 * MIB, device="cuda")
    side = torch.cuda.Stream()

    def work():
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y + 1
        y.record_stream(side)
        del y
        w = torch.zeros_like(x)
        torch.cuda.current_stream().wait_stream(side)
        return z, w
    graph, (z, w), _ = captured(work)
    graph.replay()
    torch.cuda.synchronize()
    return [z.sum().item() == 12 * MIB, w.sum().item()]


def call_allocations_of_other_streams_stay_outside():
    kept = []
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        empty(3 * MIB)  # cached: a driver's allocation is not allowed in a capture

    def work():
        with torch.cuda.stream(other):
            kept.append(empty(3 * MIB))
        return empty(5 * MIB)
    graph, y, pool = captured(work)
    return pool_blocks(pool)


def call_graphed_callables():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(),
                                torch.nn.Linear(64, 8)).cuda()
    x = torch.randn(16, 64, device="cuda")
    graphed = torch.cuda.make_graphed_callables(model, (x,))
    loss = graphed(x).sum()
    loss.backward()
    return [loss.requires_grad, all(p.grad is not None for p in model.parameters())]


def pinned_inputs():
    """How many bytes outside pools stay on the GPU for graphs; natively all do."""
    if not is_firn():
        return None
    import firn
    return sum(each["bytes"] for device in firn.stats()["devices"] for each in device["pinned"]
               if each["reason"].startswith("used by a CUDA graph"))


@alone(FIRN_BUDGET="160MiB", FIRN_WATCH="0")
def call_inputs_of_a_graph_stay():
    """Memory is short between replays, which nobody sees read their inputs."""
    x = torch.full((8 * MIB,), 2.0, device="cuda")
    graph, y, _ = captured(lambda: x * 2)
    found = []
    for turn in range(3):
        others = [torch.full((4 * MIB,), float(turn), device="cuda") for _ in range(8)]
        x.fill_(turn + 1)
        total = sum(each.sum().item() for each in others)
        graph.replay()
        found.append([total / MIB, y.sum().item() / MIB])
        del others
    found.append(pinned_inputs() in (None, 32 * MIB))
    del graph, y
    found.append(pinned_inputs() in (None, 0))
    return found + [x.sum().item() / MIB]


@alone(FIRN_BUDGET="160MiB", FIRN_WATCH="0")
def call_inputs_that_come_back_in_a_capture():
    x = torch.full((8 * MIB,), 2.0, device="cuda")
    others = [torch.full((4 * MIB,), 1.0, device="cuda") for _ in range(9)]
    graph, y, _ = captured(lambda: x + 3)
    graph.replay()
    found = [y.sum().item() / MIB, x.sum().item() / MIB]
    return found + [sum(each.sum().item() for each in others) / MIB]


@alone(FIRN_BUDGET="160MiB", FIRN_WATCH="0")
def call_inputs_that_are_freed_before_their_graph():
    x = torch.full((8 * MIB,), 2.0, device="cuda")
    graph, y, _ = captured(lambda: x * 2)
    graph.replay()
    found = [y.sum().item() / MIB]
    del x
    found.append(pinned_inputs() in (None, 0))
    z = torch.full((8 * MIB,), 5.0, device="cuda")  # at the same address, natively too
    graph.replay()
    found.append(y.sum().item() / MIB)
    del graph
    return found + [z.sum().item() / MIB]


def checkpointed():
    """A graph with two results, and the state of its pool when both were alive."""
    graph, outputs, pool = captured(lambda: [empty(4 * MIB), empty(6 * MIB)])
    return graph, outputs, pool, torch._C._cuda_getCheckpointState(DEVICE, pool)


def storages_of(tensors):
    return [each.untyped_storage()._cdata for each in tensors]


def without_memory(tensors):
    """Tensors at the same addresses, whose memory nobody holds."""
    made = []
    for each in tensors:
        storage = torch._C._construct_storage_from_data_pointer(
            each.data_ptr(), each.device, each.untyped_storage().nbytes())
        made.append(torch.empty(0, dtype=each.dtype, device=each.device).set_(
            storage, 0, each.shape, each.stride()))
    tensors.clear()
    return made


def call_checkpoint_brings_blocks_back():
    """Blocks that were freed belong to the tensors again that were left without memory."""
    graph, outputs, pool, state = checkpointed()
    addresses = [each.data_ptr() for each in outputs]
    before = pool_blocks(pool)
    outputs = without_memory(outputs)
    freed = torch.cuda.memory_allocated()
    torch._C._cuda_setCheckpointPoolState(DEVICE, state, [], storages_of(outputs))
    found = [before, freed, pool_blocks(pool) == before, torch.cuda.memory_allocated(),
             torch._C._cuda_checkPoolLiveAllocations(DEVICE, pool, set(addresses)),
             [each.data_ptr() for each in outputs] == addresses]
    del outputs
    return found + [torch.cuda.memory_allocated(), pool_blocks(pool)]


def call_checkpoint_after_other_allocations():
    """Between checkpoint and restoring, the pool's memory served other sizes."""
    graph, outputs, pool, state = checkpointed()
    outputs = without_memory(outputs)
    second, more, _ = captured(lambda: [empty(5 * MIB), empty(3 * MIB)], pool)
    del second, more
    torch._C._cuda_setCheckpointPoolState(DEVICE, state, [], storages_of(outputs))
    found = [pool_blocks(pool), torch.cuda.memory_allocated()]
    for each in outputs:
        each.fill_(7)
    return found + [[each.sum().item() for each in outputs]]


def call_checkpoint_frees_what_came_later():
    graph, outputs, pool, state = checkpointed()
    second, more, _ = captured(lambda: empty(5 * MIB), pool)
    outputs = without_memory(outputs)
    live = torch.cuda.memory_allocated()
    torch._C._cuda_setCheckpointPoolState(DEVICE, state, storages_of([more]),
                                          storages_of(outputs))
    return [live, torch.cuda.memory_allocated(),
            torch._C._cuda_checkPoolLiveAllocations(DEVICE, pool,
                                                    {each.data_ptr() for each in outputs})]


def call_checkpoint_that_nobody_takes_over():
    graph, outputs, pool, state = checkpointed()
    del outputs
    freed = torch.cuda.memory_allocated()
    torch._C._cuda_setCheckpointPoolState(DEVICE, state, [], [])
    return [freed, torch.cuda.memory_allocated(),
            torch._C._cuda_checkPoolLiveAllocations(DEVICE, pool, set())]


def call_graph_trees():
    """What torch.compile's mode "reduce-overhead" does with a function, without its compiler."""
    from torch._inductor.cudagraph_trees import cudagraphify_impl

    def work(inputs):
        x = inputs[0]
        inputs.clear()
        return [x * 2 + 1]
    x = torch.ones(2 * MIB, device="cuda")
    with torch.no_grad():
        run = cudagraphify_impl(work, [x], (), device_index=0, is_backward=False,
                                is_inference=True, stack_traces=[None])
        found = []
        for turn in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            y = run([torch.full_like(x, float(turn))])[0]
            found.append(y.sum().item() / (2 * MIB))
            del y
    torch._inductor.cudagraph_trees.reset_cudagraph_trees()
    return found
