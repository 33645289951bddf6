"""Every collective that gloo has for CUDA tensors. In between operators run, while a collective
that was asked for asynchronously may still be under way: gloo copies through host memory, on
streams and in threads of its own."""

import pathlib
import sys

import torch
import torch.distributed as dist

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "scripts"))

import report  # noqa: E402

NUMBERS = 1 << 18  # 1 MiB: just large enough to be spilled
NEIGHBOURS = 64  # of as much: so that a third of all holds what one collective uses


def tensor(seed, scale=1):
    generator = torch.Generator().manual_seed(1000 * dist.get_rank() + seed)
    return torch.randint(-99, 99, (NUMBERS * scale,), generator=generator).float().to("cuda")


def unrelated_work():
    x = torch.arange(NUMBERS, device="cuda").float()
    for _ in range(3):
        x = x * 0.5 + 1
    return x


def finished(work):
    """Operators while `work` is under way; adversarial Firn spills after each of them."""
    unrelated_work()
    work.wait()


def all_reduce():
    x = tensor(1)
    finished(dist.all_reduce(x, async_op=True))
    return [x]


def all_reduce_max():
    x = tensor(2)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return [x]


def all_reduce_of_a_view():
    x = tensor(3, 2)
    finished(dist.all_reduce(x[NUMBERS // 2:NUMBERS], async_op=True))
    return [x]


def several_all_reduces_at_once():
    xs = [tensor(10 + i) for i in range(6)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    for work in reversed(works):
        finished(work)
    return xs


def used_at_once_on_another_stream():
    x = tensor(4)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        y = x + 1
    torch.cuda.current_stream().wait_stream(side)
    return [y]


def broadcast():
    x = tensor(5)
    finished(dist.broadcast(x, src=1, async_op=True))
    return [x]


def reduce():
    x = tensor(6)
    finished(dist.reduce(x, dst=0, async_op=True))
    return [x] if dist.get_rank() == 0 else []


def all_gather():
    xs = [torch.empty(NUMBERS, device="cuda") for _ in range(dist.get_world_size())]
    finished(dist.all_gather(xs, tensor(7), async_op=True))
    return xs


def all_gather_into_tensor():
    x = torch.empty(NUMBERS * dist.get_world_size(), device="cuda")
    finished(dist.all_gather_into_tensor(x, tensor(8), async_op=True))
    return [x]


def reduce_scatter_tensor():
    x = torch.empty(NUMBERS, device="cuda")
    finished(dist.reduce_scatter_tensor(x, tensor(9, dist.get_world_size()), async_op=True))
    return [x]


def reduce_scatter():
    x = torch.empty(NUMBERS, device="cuda")
    dist.reduce_scatter(x, list(tensor(20, dist.get_world_size()).chunk(dist.get_world_size())))
    return [x]


def gather():
    xs = [torch.empty(NUMBERS, device="cuda") for _ in range(dist.get_world_size())]
    dist.gather(tensor(21), xs if dist.get_rank() == 0 else None, dst=0)
    return xs if dist.get_rank() == 0 else []


def scatter():
    x = torch.empty(NUMBERS, device="cuda")
    parts = list(tensor(22, dist.get_world_size()).chunk(dist.get_world_size()))
    dist.scatter(x, parts if dist.get_rank() == 0 else None, src=0)
    return [x]


def all_to_all_single():
    x = torch.empty(NUMBERS, device="cuda")
    finished(dist.all_to_all_single(x, tensor(23), async_op=True))
    return [x]


def functional_all_reduce():
    from torch.distributed import _functional_collectives as functional
    x = functional.all_reduce(tensor(24), "sum", dist.group.WORLD)
    unrelated_work()
    return [x * 2]


CASES = [all_reduce, all_reduce_max, all_reduce_of_a_view, several_all_reduces_at_once,
         used_at_once_on_another_stream, broadcast, reduce, all_gather, all_gather_into_tensor,
         reduce_scatter_tensor, reduce_scatter, gather, scatter, all_to_all_single,
         functional_all_reduce]


def run(cases):
    """Yields (name, digest of what this rank holds afterwards, or the error's first line), and the
    peak."""
    torch.cuda.reset_peak_memory_stats()
    kept = [tensor(100 + i) for i in range(NEIGHBOURS)]  # nobody may write to them
    for case in cases:
        try:
            said = report.digest(case())
        except (RuntimeError, ValueError) as error:
            said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        yield case.__name__, said
    yield "neighbours", report.digest(kept)
    yield "peak", torch.cuda.max_memory_allocated()
