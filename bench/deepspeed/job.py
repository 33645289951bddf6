#!/usr/bin/env python3
"""A GPT trained by DeepSpeed, on one rank: an ordinary script, which knows nothing of Firn.

  job.py --stage 0|2|3 [--offload none|optimizer|all|nvme] [--folder DIR] [--save FILE]
         [--steps N] [--layers N] [--width N] [--batch N] [--length N]

bf16 as DeepSpeed has it (parameters and gradients in bf16, AdamW on masters in fp32), the same data
in every run. Stage 0: by PyTorch alone, with its fused AdamW, a tensor of states for each parameter
where DeepSpeed has one for all of them. `optimizer`: the optimizer's states and its updates are in
host memory (ZeRO-Offload); `all`: parameters too; `nvme`: both in DIR (ZeRO-Infinity). Prints
"loss" of each step, behind each step "step" with the counts of the software GPU and the kernel
(/proc/self/io) until then, and in the end "sha256" of all parameters, and "peak", the most that
PyTorch allocated in the second half of the steps. FILE gets the parameters, in fp32, and "saved"
names it.
"""

import argparse
import hashlib
import json
import os

import software_counts
import torch
import torch.nn.functional as F

WORDS = 4096
HEADS = 8
RATE = 1e-3
# Elements of the buffers for gradients: by default 500 million, 1 GB, as for larger models.
BUCKET = 1 << 21


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before_attention, self.before_mlp = (torch.nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, HEADS, width // HEADS).transpose(1, 2)
                   for part in self.qkv(self.before_attention(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Gpt(torch.nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.token = torch.nn.Embedding(WORDS, width)
        self.layers = torch.nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = torch.nn.Linear(width, WORDS, bias=False)

    def forward(self, tokens, wanted):
        x = self.token(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x).float().view(-1, WORDS), wanted.reshape(-1))


def file_counts():
    """Bytes that this process, with its threads, had from and gave to the devices below files, past
    the page cache too, which holds none of DeepSpeed's (it opens files with O_DIRECT)."""
    try:
        with open("/proc/self/io") as lines:
            found = dict(each.split(": ") for each in lines)
    except OSError:  # a kernel without it
        return {}
    return {f"files_{name}_bytes": int(found[f"{name}_bytes"]) for name in ("read", "write")}


def config(given):
    zero = {"stage": given.stage, "reduce_bucket_size": BUCKET,
            "allgather_bucket_size": BUCKET}
    host = {"device": "cpu", "pin_memory": True}
    if given.offload == "nvme":
        host = {"device": "nvme", "nvme_path": given.folder, "pin_memory": True,
                "buffer_size": BUCKET}  # (elements: of the largest parameter)
    if given.offload != "none":
        # (An optimizer of DeepSpeed's on NVMe works through a buffer for a part of the states.)
        zero["offload_optimizer"] = {**host, "buffer_count": 4} if given.offload == "nvme" else host
        zero["offload_optimizer"].pop("buffer_size", None)
    if given.offload in ("all", "nvme"):
        # (By default the first billion of those on NVMe stay in host memory, and with the five
        # buffers of the default a prefetch of several layers fails.)
        zero["offload_param"] = {**host, "max_in_cpu": 0, "buffer_count": 5 * given.layers} \
            if given.offload == "nvme" else host
    # (Gradients are not clipped: by default they are, to a norm of 1, and stage 3 has their norm in
    # fp32 with the optimizer offloaded and in fp64 without, so bits would differ.)
    return {"train_micro_batch_size_per_gpu": given.batch, "bf16": {"enabled": True},
            "gradient_clipping": 0.0,
            "optimizer": {"type": "AdamW", "params": {"lr": RATE, "torch_adam": True}},
            "zero_force_ds_cpu_optimizer": False, "zero_optimization": zero}


class Plain:
    """A step of the same precision, without DeepSpeed."""

    def __init__(self, model):
        self.module = model.cuda().bfloat16()
        self._masters = [each.detach().float() for each in self.module.parameters()]
        self._optimizer = torch.optim.AdamW(self._masters, lr=RATE, fused=True)

    def __call__(self, *given):
        return self.module(*given)

    @staticmethod
    def backward(loss):
        loss.backward()

    def step(self):
        for each, master in zip(self.module.parameters(), self._masters):
            master.grad, each.grad = each.grad.float(), None
        self._optimizer.step()
        self._optimizer.zero_grad()
        with torch.no_grad():
            for each, master in zip(self.module.parameters(), self._masters):
                each.copy_(master)


def by_deepspeed(model, given):
    import deepspeed
    deepspeed.init_distributed("nccl")
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                      config=config(given))
    return engine


def parameters(model, stage):
    """All of them, in order, wherever DeepSpeed keeps them."""
    for each in model.parameters():
        if stage < 3:
            yield each
        else:
            import deepspeed
            with deepspeed.zero.GatheredParameters([each]):
                yield each


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", type=int, choices=(0, 2, 3), required=True)
    parser.add_argument("--offload", choices=("none", "optimizer", "all", "nvme"), default="none")
    parser.add_argument("--folder", help="of --offload nvme")
    parser.add_argument("--save", help="a file for all parameters, in fp32")
    for name, default in (("steps", 8), ("layers", 8), ("width", 512), ("batch", 8),
                          ("length", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=os.environ.get("MASTER_PORT", "29611"))
    torch.manual_seed(0)
    model = Gpt(given.layers, given.width)
    print("parameters", sum(each.numel() for each in model.parameters()))
    engine = by_deepspeed(model, given) if given.stage else Plain(model)
    for step in range(given.steps):
        if step == given.steps // 2:
            torch.cuda.reset_peak_memory_stats()
        tokens = torch.randint(0, WORDS, (given.batch, given.length + 1),
                               generator=torch.Generator().manual_seed(step)).cuda()
        loss = engine(tokens[:, :-1], tokens[:, 1:])
        engine.backward(loss)
        engine.step()
        torch.cuda.synchronize()
        print("loss", repr(float(loss)), flush=True)
        print("step", json.dumps({**(software_counts.read() or {}), **file_counts()}), flush=True)
    print("peak", torch.cuda.max_memory_allocated())
    digest = hashlib.sha256()
    with open(given.save or os.devnull, "wb") as file:
        for each in parameters(engine.module, given.stage):
            data = each.detach().float().cpu().numpy().tobytes()
            digest.update(data)
            file.write(data)
    print("sha256", digest.hexdigest())
    if given.save:
        print("saved", given.save)
    if given.stage:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
