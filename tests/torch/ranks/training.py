"""A few steps of a small GPT on bytes, each rank with batches of its own, by DDP or FSDP."""

import pathlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "scripts"))

import gpt_adamw  # noqa: E402
import report  # noqa: E402
import text  # noqa: E402

STEPS, LAYERS, WIDTH, HEADS, LENGTH, BATCH = 2, 2, 384, 4, 64, 2


def by_ddp(model):
    from torch.nn.parallel import DistributedDataParallel
    return DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])


def by_fsdp1(model):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    return FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({gpt_adamw.Block}),
                                    device_id=torch.cuda.current_device())


def by_fully_shard(model):
    from torch.distributed.fsdp import fully_shard
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


WRAPPERS = {"ddp": by_ddp, "fsdp1": by_fsdp1, "fully_shard": by_fully_shard}


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def optimizer_state(optimizer):
    """Every tensor of it, in a fixed order."""
    return [local(optimizer.state[parameter][name]) for group in optimizer.param_groups
            for parameter in group["params"] for name in sorted(optimizer.state[parameter])]


def train(by, steps=STEPS, layers=LAYERS):
    """Yields (what, value): a loss per step, digests of parameters and optimizer, the peak."""
    torch.manual_seed(1)
    torch.cuda.reset_peak_memory_stats()
    model = WRAPPERS[by](gpt_adamw.Gpt(layers, WIDTH, HEADS, LENGTH).to("cuda"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data = text.batches(text.library_text(1 << 18), steps, BATCH, LENGTH, dist.get_rank())
    for tokens, targets in data:
        logits = model(tokens.to("cuda"))
        loss = F.cross_entropy(logits.view(-1, 256), targets.to("cuda").reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield "loss", loss.item().hex()
    yield "parameters", report.digest([local(each) for each in model.parameters()])
    yield "optimizer", report.digest(optimizer_state(optimizer))
    yield "peak", torch.cuda.max_memory_allocated()
