"""Random models under firn.relay: the loop's bits, and the relay's order.

A seed draws the layers, how they are given their inputs (alone, as keywords, tuples, dictionaries),
what goes past them (skips, an encoder's result, results that nobody uses), which are frozen, tied,
called twice or left out by some micro-batches, and the optimizer.
"""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from relay_models import Job, check_same_bits, different, quietly, firn

WIDTH = 6


class Layer(nn.Module):
    """`kind`: what it takes and gives."""

    def __init__(self, kind, twice, inner):
        super().__init__()
        self.kind, self.twice, self.inner = kind, twice, inner
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        if kind == "memory":
            self.third = nn.Linear(WIDTH, WIDTH)

    def body(self, value):
        return self.second(torch.tanh(self.first(value)))

    def forward(self, value, memory=None, *, mask=None, more=None):
        if isinstance(value, tuple):
            value, carried = value
        else:
            carried = None
        result = checkpoint(self.body, value, use_reentrant=False) \
            if self.inner and torch.is_grad_enabled() else self.body(value)
        if self.twice:
            result = result + self.second(value * self.scale)
        if mask is not None:
            result = result.masked_fill(mask, 0.0)
        if memory is not None:  # two uses of one input, as of attention's keys and values
            result = result + torch.sigmoid(memory) * memory.mean(0, keepdim=True)
        if more is not None:
            result = result + more["a"] * more["b"][0]
        result = value * self.scale + result
        if self.kind == "tuple":
            return result, (result.detach().mean(), carried if carried is not None
                            else self.first(value))
        if self.kind == "dictionary":
            return {"value": result, "size": result.square().mean(), "none": None, "n": 3}
        return result


class Model(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.kind = draw.choice(["plain", "memory", "tuple", "dictionary", "keywords"])
        twice, inner = draw.random() < 0.3, draw.random() < 0.25
        count = draw.randint(2, 5)
        self.into = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Layer(self.kind, twice, inner) for _ in range(count))
        self.out = nn.Linear(WIDTH, 1)
        self.skips = {number: draw.randrange(number + 1) for number in range(count)
                      if draw.random() < 0.4}
        self.repeated = draw.randrange(count) if draw.random() < 0.25 else None
        self.left_out = draw.randrange(count) if draw.random() < 0.25 else None
        self.penalised = draw.randrange(count) if draw.random() < 0.2 else None
        self.in_place = draw.random() < 0.3 and self.kind in ("plain", "memory", "keywords")
        self.unused = draw.random() < 0.2
        if draw.random() < 0.25:
            self.layers[-1].second.weight = self.layers[0].second.weight
        if draw.random() < 0.2:
            self.into.weight = self.layers[0].first.weight
        if draw.random() < 0.3:
            self.layers[draw.randrange(count)].requires_grad_(False)
        if draw.random() < 0.3:
            self.layers[draw.randrange(count)].first.requires_grad_(False)
        if draw.random() < 0.2:
            self.into.requires_grad_(False)

    def forward(self, values):
        value = self.into(values)
        memory, kept, extra = torch.relu(value), [value], 0.0
        mask = values > 1.5
        carried = None
        for number, layer in enumerate(self.layers):
            if number == self.left_out and values[0, 0] > 0:
                continue
            for _ in range(2 if number == self.repeated else 1):
                value, carried, extra = self._run(layer, value, memory, mask, carried, extra)
            if number in self.skips:
                other = kept[min(self.skips[number], len(kept) - 1)]
                value = value.add_(other) if self.in_place else value + other
            kept.append(value)
        if self.penalised is not None:
            extra = extra + self.layers[self.penalised].second.weight.square().sum()
        if self.unused:
            self.layers[0](value.detach()) if self.kind in ("plain", "memory") else None
        return self.out(value), extra

    def _run(self, layer, value, memory, mask, carried, extra):
        if self.kind == "memory":
            return layer(value, memory), None, extra
        if self.kind == "keywords":
            more = {"a": memory, "b": [memory, 1]}
            return layer(value, mask=mask, more=more), None, extra
        if self.kind == "tuple":
            value, (_, carried) = layer((value, carried))
            return value, carried, extra
        if self.kind == "dictionary":
            found = layer(value, mask=mask)
            return found["value"], None, extra + found["size"]
        return layer(value), None, extra


def compute(model, part):
    result, extra = model(part)
    return functional.mse_loss(result, part[:, :1]) + extra


OPTIMIZERS = [(torch.optim.AdamW, {}), (torch.optim.SGD, {"momentum": 0.9}),
              (torch.optim.Adam, {"fused": True}), (torch.optim.RMSprop, {"foreach": True})]


def job(seed):
    draw = random.Random(seed)
    micro_batches = draw.choice([1, 2, 3, 4])
    kind, of_optimizer = draw.choice(OPTIMIZERS)
    options = {"keep": draw.choice([0, 0, 1])}
    clip = 0.1 if draw.random() < 0.2 else None
    structure = draw.random()
    generator = torch.Generator().manual_seed(seed)
    steps = [[torch.randn(3, WIDTH, generator=generator) for _ in range(micro_batches)]
             for _ in range(3)]
    return {"make": lambda: Model(random.Random(structure)), "steps": steps,
            "optimizer": kind, "clip": clip, "options": options, **of_optimizer}


SEEDS = [range(first, first + 15) for first in range(0, 60, 15)] + [
    pytest.param(range(1000, 1400), marks=pytest.mark.long)]


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_bits_of_the_loop(seeds):
    wrong = {}
    for seed in seeds:
        options = job(seed)
        plain = Job(**{key: value for key, value in options.items() if key != "options"},
                    compute=compute, relay=False)
        relayed = Job(**options, compute=compute)
        found = different(relayed, plain)
        if found:
            wrong[seed] = found
    assert wrong == {}


def log_of(options):
    """(what, layer, micro-batch) of the third step."""
    torch.manual_seed(0)
    model = options["make"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    relay = quietly(firn.relay, model, optimizer, 4)
    log, numbers = [], {}
    for number, layer in enumerate(model.layers):
        def before(module, inputs, number=number):
            again = torch._C._current_graph_task_id() != -1
            log.append(("again" if again else "forward", number))
        if layer.inner:
            continue
        layer.second.register_forward_pre_hook(before)
        numbers[layer.scale] = number
    step = optimizer.step

    def logged(closure=None):
        log.append(("step", *sorted(numbers[each] for group in optimizer.param_groups
                                    for each in group["params"]
                                    if each in numbers and each.grad is not None)))
        return step()
    optimizer.step = logged
    for parts in options["steps"]:
        log.clear()
        quietly(relay.step, lambda part: compute(model, part), parts)
    return model, log


@pytest.mark.parametrize("seeds", [range(100)], ids=str)
def test_order(seeds):
    """Forward: each layer over all micro-batches before the next one begins, but for the last,
    behind which each goes on with the loss. Backward: the layers in descending order, each over all
    of them. A layer is updated before the one below it runs again, and at most once."""
    looked = 0
    for seed in seeds:
        options = job(seed)
        model, log = log_of(options)
        if model.left_out is not None or model.repeated is not None or model.unused or \
                any(each.inner or each.twice for each in model.layers) or \
                not all(each.requires_grad for each in model.parameters()):
            continue
        looked += 1
        count, micro_batches = len(model.layers), len(options["steps"][0])
        forward = [line[1] for line in log if line[0] == "forward"]
        again = [line[1] for line in log if line[0] == "again"]
        assert forward == [layer for layer in range(count) for _ in range(micro_batches)]
        assert again == forward[::-1]
        updates = {}
        for place, line in enumerate(log):
            if line[0] == "step":
                for layer in line[1:]:
                    assert layer not in updates, "updated twice"
                    updates[layer] = place
        assert updates.keys() == set(range(count))
        for layer in range(1, count):
            assert updates[layer] < log.index(("again", layer - 1))
            assert updates[layer] > len(log) - 1 - log[::-1].index(("again", layer))
    assert looked >= 5
