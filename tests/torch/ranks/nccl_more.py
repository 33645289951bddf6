"""Of NCCL: collectives within a CUDA graph, numbers of eight bits, a communicator without one of
its ranks (where torch was told the device first: --bind)."""

import torch
import torch.distributed as dist

from collectives import tensor
from nccl_collectives import pressure

REPLAYS = 3


def in_a_graph():
    x = tensor(400, 4)
    dist.all_reduce(torch.ones(1, device="cuda"))  # the communicator is made before
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        dist.all_reduce(y)
        parts = torch.empty(y.numel() * dist.get_world_size(), device="cuda")
        work = dist.all_gather_into_tensor(parts, y, async_op=True)
        z = x + 1
        work.wait()
        z += parts[:z.numel()]
    results = []
    for replay in range(REPLAYS):
        x.fill_(replay + dist.get_rank())
        pressure()
        graph.replay()
        sums = [replay + rank for rank in range(dist.get_world_size())]
        assert (parts == 2 * sum(sums)).all()
        results += [z.clone(), parts.clone()]
        pressure()
    torch.cuda.synchronize()
    del graph
    return results


def many_in_a_graph():
    """More work than a kernel takes by itself: the list is the graph's."""
    mine, theirs = tensor(401, 12), torch.zeros(12 << 18, device="cuda")
    peer = dist.get_rank() ^ 1
    parts = list(zip(mine.chunk(96), theirs.chunk(96)))
    graph = torch.cuda.CUDAGraph()

    def exchange():
        works = dist.batch_isend_irecv(
            [dist.P2POp(*each) for out, into in parts
             for each in ((dist.isend, out, peer), (dist.irecv, into, peer))])
        for work in works:
            work.wait()

    exchange()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        exchange()
    results = []
    for replay in range(REPLAYS):
        mine.fill_(replay + dist.get_rank())
        pressure()
        graph.replay()
        assert (theirs == replay + peer).all()
        results.append(theirs.clone())
    torch.cuda.synchronize()
    del graph
    return results


def of_eight_bits():
    results = []
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        x = (tensor(402, 4) % 8).to(dtype)
        work = dist.all_reduce(x, async_op=True)
        pressure()
        work.wait()
        parts = torch.empty(x.numel() * dist.get_world_size(), dtype=dtype, device="cuda")
        dist.all_gather_into_tensor(parts, x)
        dist.broadcast(x, src=1)
        results += [x.view(torch.uint8), parts.view(torch.uint8)]
    return results


def without_the_last_rank():
    ranks = list(range(dist.get_world_size()))
    group = dist.new_group(ranks)
    x = tensor(403, 4)
    dist.all_reduce(x, group=group)
    before = x.clone()
    torch.cuda.synchronize()
    if dist.get_rank() != ranks[-1]:
        smaller = dist.shrink_group(ranks[-1:], group=group)
        work = dist.all_reduce(x, group=smaller, async_op=True)
        pressure()
        work.wait()
        assert (x == before * (len(ranks) - 1)).all()
    dist.barrier()
    return [x]


CASES = [in_a_graph, many_in_a_graph, of_eight_bits, without_the_last_rank]
