"""What only NCCL has, or does otherwise than gloo: collectives that run on streams of its own while
the program goes on, coalesced ones, sends and receives in groups, communicators made of others."""

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from collectives import NUMBERS, finished, tensor

PRESSURE = 24  # of 1 MiB: memory that comes and goes while a collective is under way


def pressure():
    """Work that needs room, so that what looks unused has to leave; its result is of no interest."""
    total = None
    for i in range(PRESSURE):
        x = torch.full((NUMBERS,), float(i), device="cuda") * 0.5
        total = x if total is None else total + x
    return total


def peer():
    return dist.get_rank() ^ 1


def waited_for_later():
    xs = [tensor(30 + i, 4) for i in range(4)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    pressure()
    for work in works:
        work.wait()
    return xs


def gathered_later():
    x = torch.empty(NUMBERS * 4 * dist.get_world_size(), device="cuda")
    work = dist.all_gather_into_tensor(x, tensor(35, 4), async_op=True)
    pressure()
    work.wait()
    return [x]


def scattered_later():
    x = torch.empty(NUMBERS * 4, device="cuda")
    work = dist.reduce_scatter_tensor(x, tensor(36, 4 * dist.get_world_size()), async_op=True)
    pressure()
    work.wait()
    return [x]


def one_rank_comes_late():
    """The others' kernels are on the device for as long as it takes: with operators in between."""
    x = tensor(37, 4)
    if dist.get_rank() == 0:
        for _ in range(4):
            pressure()
        torch.cuda.synchronize()
    work = dist.all_reduce(x, async_op=True)
    pressure()
    work.wait()
    return [x]


def coalesced_all_reduces():
    xs = [tensor(40 + i, 2) for i in range(5)]
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as work:
        for x in xs:
            dist.all_reduce(x)
    pressure()
    work.wait()
    return xs


def coalesced_gathers():
    xs = [torch.empty(NUMBERS * dist.get_world_size(), device="cuda") for _ in range(4)]
    parts = [tensor(50 + i) for i in range(4)]  # kept: torch does not keep what it coalesces
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as work:
        for x, part in zip(xs, parts):
            dist.all_gather_into_tensor(x, part)
    pressure()
    work.wait()
    return xs


def coalesced_scatters():
    xs = [torch.empty(NUMBERS, device="cuda") for _ in range(4)]
    wholes = [tensor(60 + i, dist.get_world_size()) for i in range(4)]
    with dist._coalescing_manager(device=torch.device("cuda"), async_ops=True) as work:
        for x, whole in zip(xs, wholes):
            dist.reduce_scatter_tensor(x, whole)
    pressure()
    work.wait()
    return xs


def sent_and_received_at_once():
    theirs = torch.empty(4 * NUMBERS, device="cuda")
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor(70, 4), peer()),
                                    dist.P2POp(dist.irecv, theirs, peer())])
    pressure()
    for work in works:
        work.wait()
    return [theirs]


def more_at_once_than_a_kernel_takes_by_itself():
    """Beyond 4 KiB of work, NCCL's kernels read it from a list in host memory."""
    mine, theirs = tensor(71, 4), torch.empty(4 * NUMBERS, device="cuda")
    parts = list(zip(mine.chunk(128), theirs.chunk(128)))
    works = dist.batch_isend_irecv(
        [dist.P2POp(*each) for out, into in parts
         for each in ((dist.isend, out, peer()), (dist.irecv, into, peer()))])
    pressure()
    for work in works:
        work.wait()
    return [theirs]


def one_sends_first():
    theirs = torch.empty(2 * NUMBERS, device="cuda")
    if dist.get_rank() % 2 == 0:
        dist.isend(tensor(72, 2), peer()).wait()
        pressure()
        dist.irecv(theirs, peer()).wait()
    else:
        work = dist.irecv(theirs, peer())
        pressure()
        work.wait()
        dist.isend(tensor(73, 2), peer()).wait()
    return [theirs]


def of_every_kind():
    """Each reduction of each type that torch gives to NCCL; small whole numbers, exact in all."""
    results = []
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64, torch.half, torch.bfloat16,
                  torch.float, torch.double):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX,
                   dist.ReduceOp.AVG):
            x = (tensor(80) % 8).to(dtype)
            dist.all_reduce(x, op=op)
            results.append(x)
    scaled = tensor(81)
    dist.all_reduce(scaled, op=dist._make_nccl_premul_sum(0.5))
    by_tensor = tensor(82)
    dist.all_reduce(by_tensor, op=dist._make_nccl_premul_sum(torch.full((1,), 0.25).to("cuda")))
    return [*results, scaled, by_tensor]


def functional_and_later():
    group = dist.group.WORLD
    xs = [functional.all_gather_tensor(tensor(90, 2), 0, group),
          functional.reduce_scatter_tensor(tensor(91, 2 * dist.get_world_size()), "sum", 0, group),
          functional.all_to_all_single(tensor(92, 2), None, None, group),
          *functional.all_reduce_coalesced([tensor(93), tensor(94)], "sum", group)]
    pressure()
    return [x + 1 for x in xs]


def objects():
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, {"rank": dist.get_rank()})
    first = [dist.get_rank(), "of the first"]
    dist.broadcast_object_list(first, src=0)
    dist.barrier()
    return [torch.tensor([each["rank"] for each in every] + first[:1])]


def part_of_the_ranks():
    """Communicators of a half each, made from the large one where torch has its device."""
    ranks = list(range(dist.get_world_size()))
    half = max(1, len(ranks) // 2)
    groups = [dist.new_group(ranks[:half]), dist.new_group(ranks[half:])]
    x = tensor(95, 2)
    work = dist.all_reduce(x, group=groups[dist.get_rank() // half], async_op=True)
    pressure()
    work.wait()
    return [x]


CASES = [waited_for_later, gathered_later, scattered_later, one_rank_comes_late,
         coalesced_all_reduces, coalesced_gathers, coalesced_scatters, sent_and_received_at_once,
         more_at_once_than_a_kernel_takes_by_itself, one_sends_first, of_every_kind,
         functional_and_later, objects, part_of_the_ranks]
