"""Tensors that several processes use."""

import gc

import sharing
import torch
from _calls import MIB


def call_tensors_for_another_process():
    other = sharing.Other(sharing.double)
    large = torch.ones(3 * MIB, device="cuda")
    small = torch.arange(10.0, device="cuda")
    view = large.view(3, -1)[1]
    other.tell([large, small, view[:10].view(2, 5)])
    found = [other.hear(), large.sum().item(), small.sum().item(), view.sum().item()]
    other.tell("end")
    return found + [other.hear(), other.end()]


def call_memory_that_was_shared_is_freed():
    before = torch.cuda.memory_allocated()
    other = sharing.Other(sharing.double)
    x = torch.ones(3 * MIB, device="cuda")
    other.tell([x])
    found = [other.hear()]
    del x
    gc.collect()
    found.append(torch.cuda.memory_allocated() - before > 0)  # the other has it yet
    other.tell("end")
    found += [other.hear(), other.end()]
    torch.cuda.ipc_collect()
    return found + [torch.cuda.memory_allocated() - before]


def call_tensors_of_another_process():
    other = sharing.Other(sharing.make)
    theirs = other.hear()
    found = [each.sum().item() for each in theirs] + [torch.cuda.memory_allocated()]
    for each in theirs:
        each.add_(1)
    torch.cuda.synchronize()
    other.tell("look")
    found.append(other.hear())
    del theirs, each
    other.tell("end")
    return found + [other.end()]


def call_an_event_of_another_process():
    other = sharing.Other(sharing.follow)
    x = torch.zeros(MIB, device="cuda")
    stream = torch.cuda.Stream()
    event = torch.cuda.Event(interprocess=True)
    with torch.cuda.stream(stream):
        for _ in range(50):
            x += 1
        event.record()
    other.tell((x, event))
    found = [other.hear()]
    other.tell("end")
    return found + [other.end()]
