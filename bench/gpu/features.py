"""One thing of PyTorch's that reaches the GPU by another way than eager operators: features.py CASE
--out FILE. Writes losses and the peak, or why it cannot be done here."""

import argparse
import json
import pathlib
import time
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

import outside
import pins

WIDTH, LAYERS, BATCH = 256, 6, 128


class Impossible(Exception):
    """Not on this device."""


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def network(scale):
    torch.manual_seed(3)
    return nn.Sequential(*(Residual(WIDTH * scale) for _ in range(LAYERS))).cuda()


def train(model, scale, steps):
    """Losses of steps over the same few batches."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = [torch.randn(BATCH * scale, WIDTH * scale, device="cuda") for _ in range(2)]
    losses = []
    for number in range(steps):
        optimizer.zero_grad()
        loss = model(batches[number % 2]).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        pins.sample()
    return losses


def compiled(scale):
    model = network(scale)
    return train(torch.compile(model), scale, 6)


def reduced_overhead(scale):
    """Inductor's kernels in CUDA graphs."""
    model = network(scale)
    return train(torch.compile(model, mode="reduce-overhead"), scale, 8)


def graphs(scale):
    """A whole step captured, and replayed between other work."""
    model = network(scale)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)
    x = torch.randn(BATCH * scale, WIDTH * scale, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    losses = []
    for number in range(5):
        others = [torch.full((1 << 20,), float(number + i), device="cuda") for i in range(8)]
        graph.replay()
        losses.append(loss.item() + sum(float(other[7]) for other in others))
    return losses


def cudnn(scale):
    """Convolutions in benchmark mode: cuDNN asks for the memory left, and tries many kernels."""
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(5)
    wide = 32 * scale
    model = nn.Sequential(nn.Conv2d(3, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(),
                          nn.Conv2d(wide, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(),
                          nn.Conv2d(wide, 16, 3, padding=1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=.01)
    x = torch.randn(8 * scale, 3, 64, 64, device="cuda")
    losses = []
    for step in range(5):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 0:  # the kernels are tried, some with three times the memory of all the rest
            torch.cuda.reset_peak_memory_stats()
        pins.sample()
    return losses


def flash(scale):
    """Scaled dot product attention by the flash kernels alone."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    torch.manual_seed(7)
    weight = torch.randn(3, 64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    x = torch.randn(4 * scale, 8, 1024, 64, device="cuda", dtype=torch.bfloat16)
    losses = []
    for _ in range(4):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            y = F.scaled_dot_product_attention(x @ weight[0], x @ weight[1], x @ weight[2],
                                               is_causal=True)
        loss = y.float().square().mean()
        loss.backward()
        with torch.no_grad():
            weight -= .01 * weight.grad
            weight.grad = None
        losses.append(loss.item())
        pins.sample()
    return losses


def nccl(scale):
    """One rank of data parallel training over NCCL."""
    import torch.distributed as distributed
    if not distributed.is_nccl_available():
        raise Impossible("this torch is built without NCCL")
    distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
    model = nn.parallel.DistributedDataParallel(network(scale))
    losses = train(model, scale, 5)
    gathered = [torch.empty(1 << 20, device="cuda")]
    distributed.all_gather(gathered, torch.full((1 << 20,), 3., device="cuda"))
    losses.append(float(gathered[0][5]))
    # Collectives that the program waits for later, with other work in between.
    buckets = [torch.full((1 << 20,), float(i), device="cuda") for i in range(8)]
    handles = [distributed.all_reduce(bucket, async_op=True) for bucket in buckets]
    others = [torch.full((1 << 20,), 2., device="cuda").cumsum(0) for _ in range(8)]
    for handle in handles:
        handle.wait()
    losses += [float(each.sum()) for each in (*buckets, *others)]
    pins.sample()
    distributed.destroy_process_group()
    return losses


CASES = {"compile": compiled, "compile-graphs": reduced_overhead, "graphs": graphs, "cudnn": cudnn,
         "flash": flash, "nccl": nccl, **outside.CASES}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    begin = time.perf_counter()
    torch.cuda.init()
    try:
        result = {"losses": [float(loss).hex() for loss in CASES[args.case](args.scale)]}
    except Impossible as words:
        result = {"impossible": str(words)}
    torch.cuda.synchronize()
    result.update(peak_bytes=torch.cuda.max_memory_allocated(), pinned=pins.most(),
                  seconds=time.perf_counter() - begin)
    args.out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
