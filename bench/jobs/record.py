#!/usr/bin/env python3
"""A whole training job at its real size, on fake tensors, as a trace for `firn simulate`.

  record.py JOB PREFIX [--gpu h200,...] [--way plain|recompute|save-on-cpu|eager|relay]
            [--micro-batches N] [--optimizer plain|fp32|host] [--cpu 1g|2g|5g|10g]
            [--layers N] [--batch N] [--length N]
  record.py --list

Runs two ordinary steps (forward, backward, fused AdamW) without memory and records the second:
PREFIX.tensors.csv, PREFIX.kernels.csv. Kernel times are from a roofline of the named GPU, not
measured (gpus.py); prints kernels, seconds and the peak of memory as JSON.
Ways: plain; recompute: torch.utils.checkpoint around every layer; save-on-cpu: what autograd saves
goes to the host and comes back, on the stream, as torch.autograd.graph.save_on_cpu does it; eager:
plain, but the optimizer updates a parameter as soon as its gradient is whole; relay: eager, and
layer after layer over all micro-batches, recomputed (relay_way.py). --micro-batches: the batch in
so many parts, whose gradients accumulate, in every way. --optimizer, of eager and relay: fp32: a
master and states of 32 bits, stepped on the device; host: these at the host, stepped there by
--cpu (rows that `firn simulate` runs beside the device: as firn.relay(where="host", states="firn"),
but for the order: parameter by parameter, not layer by layer, and of gradients and parameters Firn
moves what a row uses, where firn.relay copies them).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import sys
from typing import Callable

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gpus  # noqa: E402
import models  # noqa: E402
import updates  # noqa: E402
from recorder import Recorder  # noqa: E402
from relay_way import Relay  # noqa: E402

WAYS = ("plain", "recompute", "save-on-cpu", "eager", "relay")
OPTIMIZERS = ("plain", "fp32", "host")


def layers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The repeated ones: what people checkpoint."""
    found: list[torch.nn.Module] = []
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) and \
                not any(module is each or each in found for each in module):
            if not any(each in inner.modules() for inner in found for each in module):
                found += list(module)
        elif isinstance(module, torch.nn.Sequential) and len(module) > 2 and not found:
            pass
    if not found:  # residual networks: their blocks
        found = [each for each in model.modules() if type(each).__name__ == "Bottleneck"]
    return found


def recompute(model: torch.nn.Module) -> None:
    from torch.utils.checkpoint import checkpoint
    for layer in layers_of(model):
        forward = layer.forward

        def again(*args, _forward=forward, **kwargs):
            return checkpoint(_forward, *args, use_reentrant=False, preserve_rng_state=False,
                              **kwargs)
        layer.forward = again


class Hosted:
    """Saved tensors go to the host and come back: two copies on the stream, each time."""

    def __init__(self, recorder: Recorder, kept: set[int]):
        self._recorder, self._kept = recorder, kept

    def pack(self, tensor):
        if tensor.untyped_storage()._cdata in self._kept or tensor.numel() == 0:
            return tensor
        self._copy("copy to the host", tensor, True)
        return tensor.shape, tensor.stride(), tensor.dtype

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        shape, stride, dtype = packed
        tensor = torch.empty_strided(shape, stride, dtype=dtype)
        self._copy("copy from the host", tensor, False)
        return tensor

    def _copy(self, name, tensor, out):
        moved = tensor.numel() * tensor.element_size()
        self._recorder.kernel(name, gpus.Cost(copied=moved), [tensor] if out else [],
                              [] if out else [tensor])


class AllReduce(torch.autograd.Function):
    """Among shards of tensor parallelism: behind a layer's second product in the forward pass,
    behind its first one's in the backward pass."""

    @staticmethod
    def forward(context, value, recorder, forward):
        context.recorder, context.backwards = recorder, not forward
        if forward:
            AllReduce.note(recorder, value)
        return value.view_as(value)

    @staticmethod
    def backward(context, gradient):
        if context.backwards:
            AllReduce.note(context.recorder, gradient)
        return gradient, None, None

    @staticmethod
    def note(recorder, value):
        moved = value.numel() * value.element_size()
        recorder.kernel("all_reduce", gpus.Cost(reduced=moved), [value], [value])


# Ends of modules' names, of Llama and GPT, BERT, T5: what sums over the shards in the forward pass,
# and what gets its input from one that all of them have.
SUMMED = (".o_proj", ".down_proj", ".c_proj", ".output.dense", "Attention.o", ".wo")
ENTERED = (".self_attn", ".mlp", ".attn", ".attention.self", ".intermediate", ".SelfAttention",
           ".EncDecAttention", ".DenseReluDense")


def shard(model: torch.nn.Module, recorder: Recorder) -> None:
    for name, module in model.named_modules():
        if name.endswith(SUMMED):
            module.register_forward_hook(
                lambda _, __, out: AllReduce.apply(out, recorder, True))
        elif name.endswith(ENTERED):
            module.register_forward_pre_hook(
                lambda _, args, kwargs: (
                    tuple(AllReduce.apply(each, recorder, False) for each in args[:1]) + args[1:],
                    {key: AllReduce.apply(value, recorder, False)
                     if key == "hidden_states" else value for key, value in kwargs.items()}),
                with_kwargs=True)


def one_after_the_other(losses: list[Callable[[], torch.Tensor]]) -> None:
    """Of every micro-batch the forward and the backward pass: as gradients are accumulated."""
    for loss in losses:
        loss().backward()


def update_of(model: torch.nn.Module, way: str, optimizer: str,
              recorder: Recorder) -> updates.AtTheEnd | updates.Eager:
    if optimizer == "plain":
        return (updates.Eager if way in ("eager", "relay") else updates.AtTheEnd)(
            model, lambda parameters: torch.optim.AdamW(parameters, fused=True))

    def step(parameter, gradient, wide):
        count = parameter.numel()
        cost = gpus.Cost(stepped=count) if optimizer == "host" else \
            gpus.Cost(moved=gpus.UPDATE_BYTES * count)
        recorder.kernel(f"adamw_{optimizer}", cost, [gradient, *wide], [*wide, parameter])
    return updates.Masters(model, step)


def record(job: models.Job, way: str, micro_batches: int = 1,
           optimizer: str = "plain") -> Recorder:
    """ValueError: the batch has no such parts, the model no layers for a relay, or the way no such
    optimizer."""
    if optimizer != "plain" and (way not in ("eager", "relay") or job.mixed):
        raise ValueError(f"{job.name}, {way}: masters are of parameters of 16 bits, which are "
                         "updated one by one (--way eager, relay)")
    if job.batch % micro_batches:
        raise ValueError(f"{job.name}: a batch of {job.batch} has no {micro_batches} equal parts")
    job = dataclasses.replace(job, batch=job.batch // micro_batches)
    recorder = Recorder()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, contextlib.ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32 if job.mixed else torch.bfloat16)
        model, loss = job.build(job)
        model.train()
        if job.shards > 1:
            shard(model, recorder)
        if way == "recompute":
            recompute(model)
        update = update_of(model, way, optimizer, recorder)
        stack.enter_context(recorder)
        if way == "save-on-cpu":
            kept = {each.untyped_storage()._cdata for each in model.state_dict().values()}
            hosted = Hosted(recorder, kept)
            stack.enter_context(
                torch.autograd.graph.saved_tensors_hooks(hosted.pack, hosted.unpack))

        def part() -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=job.mixed):
                value = loss()
            return value / micro_batches if micro_batches > 1 else value

        run = one_after_the_other
        if way == "relay":
            if not layers_of(model):
                raise ValueError(f"{job.name}: no repeated layers were found")
            run = Relay(layers_of(model), lambda: entered(fake, recorder)).step
        for step in range(2):
            if step == 1:
                recorder.begin([*model.state_dict().values(), *update.states()])
            run([part] * micro_batches)
            update.finish()
        recorder.end()
    return recorder


def entered(*modes) -> contextlib.ExitStack:
    """A mode belongs to a thread."""
    stack = contextlib.ExitStack()
    for each in modes:
        stack.enter_context(each)
    return stack


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="?", choices=sorted(models.JOBS), metavar="JOB")
    parser.add_argument("prefix", nargs="?", metavar="PREFIX")
    parser.add_argument("--gpu", default="h200", metavar="GPU,...",
                        help="one, or several: then PREFIX-GPU for each")
    parser.add_argument("--way", choices=WAYS, default="plain")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--length", type=int, help="tokens of a sequence")
    parser.add_argument("--micro-batches", type=int, default=1, metavar="N")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="plain")
    parser.add_argument("--cpu", choices=sorted(gpus.CPUS), default="1g",
                        help="of --optimizer host: parameters a second")
    parser.add_argument("--list", action="store_true", help="the jobs there are")
    given = parser.parse_args()
    if given.list:
        for job in models.JOBS.values():
            print(f"{job.name}: batch {job.batch}, length {job.length}, layers {job.layers}")
        return 0
    if not given.prefix:
        parser.error("JOB and PREFIX are wanted (or --list)")
    job = models.JOBS[given.job]
    changed = {key: getattr(given, key) for key in ("layers", "batch", "length")
               if getattr(given, key)}
    names = given.gpu.split(",")
    if not set(names) <= set(gpus.GPUS):
        parser.error(f"--gpu: {given.gpu} (there are {', '.join(gpus.GPUS)})")
    job = dataclasses.replace(job, **changed)
    if given.micro_batches < 1 or job.batch % given.micro_batches:
        parser.error(f"--micro-batches: a batch of {job.batch} has no {given.micro_batches} equal "
                     "parts")
    if given.optimizer != "plain" and (given.way not in ("eager", "relay") or job.mixed):
        parser.error(f"--optimizer {given.optimizer}: of --way eager or relay, and parameters of "
                     "16 bits")
    recorder = record(job, given.way, given.micro_batches, given.optimizer)
    cpu = gpus.CPUS[given.cpu]
    for name in names:
        gpu = gpus.GPUS[name]
        recorder.write(given.prefix if len(names) == 1 else f"{given.prefix}-{name}", gpu, cpu)
        print(json.dumps({"job": job.name, **changed, "gpu": name, "way": given.way,
                          "micro_batches": given.micro_batches,
                          "times": "roofline", **recorder.summary(gpu, cpu)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
