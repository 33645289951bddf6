#!/usr/bin/env python3
"""The allocations of three eager training steps, in their order: eager.py MODEL BATCH WAY FILE
[--real]. FILE gets JSON: a list of [storage, bytes] (made), [storage, 0] (freed) and "step".

WAY: in-graph (ROAM's convention, capture.py's step: Adam's m and v are made in each step) or adam
(torch.optim.Adam as PyTorch has it on a GPU, loss.backward(), zero_grad()). The program runs on
fake tensors of a GPU, so nothing of it takes memory: storages come and go by the program's own
references, as on a GPU; what kernels and libraries take for themselves while they run is missing.
With --real it runs on the GPU instead, and FILE gets the peaks that PyTorch counts.
"""

import argparse
import contextlib
import json
import sys

import capture
import models
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAYS = ("in-graph", "adam")
STEPS = 3


class Recorder(TorchDispatchMode):
    """Storages that operators make, and those that are gone by the next one."""

    def __init__(self):
        super().__init__()
        self.events = []
        self._alive = {}      # by address: (number, weak reference, which keeps the address)
        self._count = 0

    def made(self, storage):
        reference = StorageWeakRef(storage)
        if reference.cdata not in self._alive and storage.nbytes():
            self._alive[reference.cdata] = (self._count, reference)
            self.events.append([self._count, storage.nbytes()])
            self._count += 1

    def look(self):
        gone = [address for address, (_, reference) in self._alive.items() if reference.expired()]
        self.events += [[self._alive.pop(address)[0], 0] for address in gone]

    def mark(self, word):
        self.look()
        self.events.append(word)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.look()
        out = func(*args, **(kwargs or {}))
        for each in tree_leaves(out):
            if isinstance(each, torch.Tensor) and each.device.type == "cuda":
                self.made(each.untyped_storage())
        return out


def program(name, batch, way, start, end_of_step):
    """The job: start(tensors that are there) before the first step, end_of_step() after each."""
    model, value, target, loss = models.build(name, batch)
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    start([each for each in (*parameters.values(), *buffers.values(), value, target)
           if each is not None])
    step = capture.step_of(model, loss)
    optimizer = torch.optim.Adam(model.parameters(), lr=capture.RATE)
    for _ in range(STEPS):
        if way == "in-graph":
            step(parameters, buffers, {}, {}, value, target)
        else:
            loss(model(value), target).backward()
            optimizer.step()
            optimizer.zero_grad()
        end_of_step()


def recorded(name, batch, way):
    recorder = Recorder()

    def start(tensors):
        for each in tensors:
            recorder.made(each.untyped_storage())
        recorder.__enter__()

    with FakeTensorMode(allow_non_fake_inputs=True):
        try:
            program(name, batch, way, start, lambda: recorder.mark("step"))
        finally:
            recorder.__exit__(None, None, None)
    return recorder.events


def measured(name, batch, way):
    steps = []

    def end_of_step():
        torch.cuda.synchronize()
        steps.append({"allocated": torch.cuda.max_memory_allocated(),
                      "requested": torch.cuda.memory_stats()["requested_bytes.all.peak"],
                      "reserved": torch.cuda.max_memory_reserved()})
    program(name, batch, way, lambda _: None, end_of_step)
    return steps


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=models.NAMES)
    parser.add_argument("batch", type=int)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("file")
    parser.add_argument("--scaled-attention", action="store_true")
    parser.add_argument("--real", action="store_true")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("eager.py: needs a GPU (bench/roam/reserved.py runs it on the software GPU)")
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.device("cuda"))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(models.scaled_attention(given.scaled_attention))
        run = measured if given.real else recorded
        found = run(given.model, given.batch, given.way)
    with open(given.file, "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
