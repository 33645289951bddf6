"""Layers whose second run, or whose graph, is another than their arguments and results tell:
refused by name, and never a wrong gradient in silence."""

import contextvars
import random

import pytest
import torch
from torch import nn
from torch.nn import functional

from relay_models import Block, Words, check_same_bits, firn, loss_of, quietly, word_parts

Refused = firn.relay.Refused


def run_relay(block, compute=loss_of, steps=4, micro_batches=2, before=None, make=None, **options):
    torch.manual_seed(0)
    model = make() if make else Words(block=block)
    relay = quietly(firn.relay, model, torch.optim.SGD(model.parameters(), lr=0.1), micro_batches,
                    **options)
    for number, parts in enumerate(word_parts(micro_batches, steps)):
        if before:
            before(model, number)
        quietly(relay.step, lambda part: compute(model, part), parts)
    return model


class Counting(Block):
    calls = 0

    def forward(self, value):
        self.calls += 1
        return super().forward(value) / self.calls


class OwnGenerator(Block):
    def __init__(self, width, drop=0.0):
        super().__init__(width, drop)
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, value):
        return super().forward(value) * torch.rand(value.shape, generator=self.generator)


SCALE = contextvars.ContextVar("SCALE", default=1.0)


class ByVariable(Block):
    def forward(self, value):
        return super().forward(value) * SCALE.get()


def with_variable(model, part):
    token = SCALE.set(0.1)
    try:
        return loss_of(model, part)
    finally:
        SCALE.reset(token)


class Halving(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 0.5 if function is functional.gelu else result


def with_mode(model, part):
    with Halving():
        return loss_of(model, part)


@pytest.mark.parametrize("block, compute", [
    (Counting, loss_of), (OwnGenerator, loss_of), (ByVariable, with_variable), (Block, with_mode)])
def test_second_runs_with_other_results(block, compute):
    with pytest.raises(Refused, match=r"second run of layer blocks.2 .* has other results"):
        run_relay(block, compute)


class Random(Block):
    """Of Python's generator; whole layers are left out, too."""

    def forward(self, value):
        return super().forward(value) * random.random() if random.random() > 0.4 else value


def test_pythons_random_is_drawn_again_in_second_runs():
    def make():
        random.seed(1)
        return Words(block=Random)
    check_same_bits(make, word_parts(1, 6))
    with pytest.warns(RuntimeWarning, match="random numbers come from the CPU's generator"):
        model = make()
        relay = firn.relay(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
        relay.step(lambda part: loss_of(model, part), word_parts(2, 1)[0])


class Updating(Block):
    on = False

    def __init__(self, width, drop=0.0):
        super().__init__(width, drop)
        self.register_buffer("mean", torch.ones(width))

    def forward(self, value):
        if self.on:
            self.mean.mul_(0.9)
        return super().forward(value) * self.mean


def test_buffers_that_change_from_the_third_step_on():
    def before(model, number):
        for block in model.blocks:
            block.on = number >= 2
    with pytest.raises(Refused, match=r"blocks.0 \(Updating\) changes its buffer mean"):
        run_relay(Updating, before=before)


class Side(Block):
    """`aux` beside its result: of its own operators, or of one that the result has too."""
    on, own = True, True

    def forward(self, value):
        inner = self.inner(self.norm(value))
        if self.on:
            self.aux = self.inner(value) if self.own else inner
        return value + self.outer(functional.gelu(inner))


def with_side(model, part):
    value = model.embedding(part)
    total = 0.0
    for block in model.blocks:
        value = block(value)
        if block.on:
            total = total + block.aux.square().mean()
    return value.square().mean() + total


class SideOfNode(Side):
    own = False


@pytest.mark.parametrize("block", [Side, SideOfNode])
@pytest.mark.parametrize("begins", [0, 2])
def test_results_that_leave_a_layer_past_its_return(block, begins):
    done = []

    def before(model, number):
        done.append(number)
        for each in model.blocks:
            each.on = number >= begins
    with pytest.raises(Refused, match=r"computed in layer blocks.\d \(\w+\).* not returned"):
        run_relay(block, with_side, before=before)
    assert done[-1] == begins


class Hooking(Block):
    on = True

    def forward(self, value):
        if self.on and value.requires_grad:
            value.register_hook(lambda gradient: gradient * 0.5)
        return super().forward(value)


@pytest.mark.parametrize("begins", [0, 2])
def test_hooks_on_arguments(begins):
    def before(model, number):
        for each in model.blocks:
            each.on = number >= begins
    with pytest.raises(Refused, match=r"blocks.0 \(Hooking\) registers a hook on an argument"):
        run_relay(Hooking, before=before)


def test_hooks_of_arguments_outside_of_layers_stay():
    def compute(model, part):
        value = model.embedding(part)
        for block in model.blocks:
            value = block(value)
            value.register_hook(lambda gradient: gradient * 0.5)
            value.retain_grad()
        return value.square().mean()
    check_same_bits(Words, word_parts(2, 3), compute=compute)


class Passing(Block):
    def forward(self, value):
        return value, self.outer(self.inner(value)) + super().forward(value)


def test_a_layer_that_returns_its_input_too():
    def compute(model, part):
        value = model.embedding(part)
        for block in model.blocks:
            same, value = block(value)
            value = same * 0.3 + value
        return value.square().mean()
    check_same_bits(lambda: Words(block=Passing, layers=4), word_parts(3, 4), compute=compute)


class Gated(nn.Module):
    """Attends along the first dimension, once its gate is open."""

    def __init__(self, width, drop=0.0):
        super().__init__()
        self.inner, self.gate = nn.Linear(width, width), nn.Parameter(torch.zeros(()))

    def forward(self, value):
        inner = self.inner(value).transpose(0, 1)
        mixed = functional.scaled_dot_product_attention(inner, inner, inner)
        return value + self.gate * mixed.transpose(0, 1)


class Balanced(Block):
    """A loss over the whole batch, in training."""

    def forward(self, value):
        inner = self.inner(value)
        balance = inner.mean((0, 1)).square().sum() if self.training else inner.new_zeros(())
        return super().forward(value), balance


@pytest.mark.parametrize("block, refused_at", [(Gated, 1), (Balanced, 0)])
def test_layers_that_mix_the_rows_of_a_batch_later_or_in_training(block, refused_at):
    torch.manual_seed(0)
    model = Words(block=block)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quietly(firn.relay, model, optimizer, 3, split=True)

    def step(words):
        value, total = model.embedding(words), 0.0
        for each in model.blocks:
            result = each(value)
            value, more = result if isinstance(result, tuple) else (result, 0.0)
            total = total + more
        (value.square().mean() + total).backward()
        optimizer.step()
        optimizer.zero_grad()
    steps = [words for (words,) in word_parts(1, 2, rows=6)]
    for words in steps[:refused_at]:
        step(words)
    with pytest.raises(Refused, match=r"blocks.0 .* has other results over parts of the batch"):
        step(steps[refused_at])


class Late(Block):
    on = False

    def forward(self, value):
        return functional.dropout(super().forward(value), 0.2, training=self.on)


def test_draws_that_begin_in_a_later_step_are_said():
    torch.manual_seed(0)
    model = Words(block=Late)
    relay = firn.relay(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    first, second = word_parts(2, 2)
    relay.step(lambda part: loss_of(model, part), first)
    for block in model.blocks:
        block.on = True
    with pytest.warns(RuntimeWarning, match="random numbers come from the CPU's generator"):
        relay.step(lambda part: loss_of(model, part), second)


class Masked(Block):
    def __init__(self, width, drop=0.0):
        super().__init__(width, drop)
        self.register_buffer("mask", torch.ones(width))

    def forward(self, value):
        return super().forward(value * self.mask)


def write_mask(model):
    with torch.no_grad():
        model.blocks[1].mask[0] *= 1 + 1e-7  # (no compared element would show it)


def replace_mask(model):
    model.blocks[1].mask = model.blocks[1].mask.clone()


@pytest.mark.parametrize("change", [write_mask, replace_mask])
@pytest.mark.parametrize("step", [0, 2])
def test_buffers_that_are_changed_between_a_layers_passes(change, step):
    """In a run that no other result is compared with, too."""
    torch.manual_seed(0)
    model = Words(block=Masked)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quietly(firn.relay, model, optimizer, 1, split=True)
    for number, (part,) in enumerate(word_parts(1, 4, rows=4)):
        loss = loss_of(model, part)
        if number == step:
            change(model)
            with pytest.raises(Refused, match=r"buffer mask of layer blocks.1 \(Masked\) was "
                                              "changed between its forward and its backward"):
                loss.backward()
            return
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
