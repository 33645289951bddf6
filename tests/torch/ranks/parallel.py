"""A few steps of training that ranks divide among them otherwise than by batches: by columns and rows
of the weights (tensor parallel), and by layers (pipelines)."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import report

WIDTH, LAYERS, ROWS, STEPS, PARTS = 384, 4, 64, 2, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def batch(seed):
    """The same on every rank: they have parts of one model."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-99, 99, (PARTS * ROWS, WIDTH), generator=generator)
    return numbers.float().div(99).to("cuda")


def finished(parameters):
    local = [each.to_local() if hasattr(each, "to_local") else each for each in parameters]
    yield "parameters", report.digest(local)
    yield "peak", torch.cuda.max_memory_allocated()


def tensor_parallel(steps=STEPS):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)
    torch.manual_seed(5)
    torch.cuda.reset_peak_memory_stats()
    model = nn.Sequential(*(Layer() for _ in range(LAYERS))).to("cuda")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for layer in model:
        parallelize_module(layer, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=False)
    for step in range(steps):
        x = batch(step)
        loss = F.mse_loss(model(x), x * 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield "loss", loss.item().hex()
    yield from finished(model.parameters())


def pipeline(schedule_class, stages_of_a_rank, steps):
    from torch.distributed.pipelining import PipelineStage
    torch.manual_seed(6)
    torch.cuda.reset_peak_memory_stats()
    ranks, rank = dist.get_world_size(), dist.get_rank()
    count = ranks * stages_of_a_rank
    layers = [nn.Sequential(*(Layer() for _ in range(max(1, LAYERS // count))))
              for _ in range(count)]
    device = torch.device("cuda", torch.cuda.current_device())
    mine = {index: layers[index].to(device) for index in range(rank, count, ranks)}
    stages = [PipelineStage(module, index, count, device) for index, module in mine.items()]
    schedule = schedule_class(stages if stages_of_a_rank > 1 else stages[0],
                              n_microbatches=PARTS, loss_fn=F.mse_loss)
    parameters = [each for module in mine.values() for each in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for step in range(steps):
        x = batch(step)
        optimizer.zero_grad()
        losses = []
        given = (x,) if rank == 0 else ()
        if rank == ranks - 1:
            schedule.step(*given, target=x * 2, losses=losses)
        else:
            schedule.step(*given)
        optimizer.step()
        yield "loss", " ".join(loss.item().hex() for loss in losses)
    yield from finished(parameters)


def one_forward_one_backward(steps=STEPS):
    from torch.distributed.pipelining import Schedule1F1B
    yield from pipeline(Schedule1F1B, 1, steps)


def interleaved(steps=STEPS):
    from torch.distributed.pipelining import ScheduleInterleaved1F1B
    yield from pipeline(ScheduleInterleaved1F1B, 2, steps)


CASES = {"tensor_parallel": tensor_parallel, "pipeline": one_forward_one_backward,
         "pipeline_interleaved": interleaved}
