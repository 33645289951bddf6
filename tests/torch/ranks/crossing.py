"""Each of two ranks waits, on the device, for what the other one sends only after it has allocated
memory: without Firn the host runs ahead of that; a host that waits for the device waits for ever."""

import torch
import torch.distributed as dist

import report
from collectives import NUMBERS, tensor

COUNT = 16  # of 2 MiB


def run():
    rank = dist.get_rank()
    towards = [dist.new_group([0, 1]) for _ in range(2)]  # a communicator for each direction
    for receiver, group in enumerate(towards):  # made here, where nobody waits for anything else
        x = tensor(0)
        (dist.irecv(x, 1 - rank, group=group) if rank == receiver else
         dist.isend(x, 1 - rank, group=group)).wait()
    mine = tensor(300, 2)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        kept = [tensor(200 + i, 2) for i in range(COUNT)]
    torch.cuda.synchronize()
    theirs = torch.empty(2 * NUMBERS, device="cuda")
    receiving = dist.irecv(theirs, 1 - rank, group=towards[rank])
    with torch.cuda.stream(side):
        receiving.wait()  # what follows on that stream, and events of it, are behind it
    more = [torch.empty(2 * NUMBERS, device="cuda") for _ in range(COUNT * 5 // 8)]
    dist.isend(mine, 1 - rank, group=towards[1 - rank]).wait()
    torch.cuda.current_stream().wait_stream(side)
    for i, x in enumerate(more):
        x.fill_(i)
    yield "crossed", report.digest([theirs, *kept, *more])
    yield "peak", torch.cuda.max_memory_allocated()
