"""keep="auto": how many layers' graphs fit, from what two steps took."""

import random

import pytest
import torch

from relay_models import firn
from firn.relay.keep import PART, kept


def test_as_many_as_leave_a_tenth():
    assert kept(10, plain=900, least=100, budget=1000) == 10
    assert kept(10, plain=901, least=101, budget=1000) == 9
    assert kept(10, plain=1700, least=100, budget=1000) == 5
    assert kept(10, plain=1700, least=900, budget=1000) == 0
    assert kept(10, plain=1700, least=2000, budget=1000) == 0


@pytest.mark.parametrize("seed", range(200))
def test_it_is_the_most_that_fits(seed):
    draw = random.Random(seed)
    layers = draw.randint(1, 100)
    least = draw.randint(1, 10_000)
    each = draw.randint(1, 1000)
    plain, budget = least + layers * each, draw.randint(1, 120_000)
    fit = [number for number in range(layers + 1) if least + number * each <= PART * budget]
    found = kept(layers, plain, least, budget)
    assert found == max(fit, default=0) or abs(least + found * each - PART * budget) < 1e-6


def test_without_firn_none_are_kept():
    """Another allocator would fail a step that needs more than the first two did."""
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
    relay = firn.relay(model, torch.optim.SGD(model.parameters(), lr=.1), micro_batches=2)
    for _ in range(4):
        relay.step(lambda part: model(part).sum(), torch.ones(4, 4).chunk(2))
    assert not any(each.kept for each in relay._layers)
    assert "kept" not in repr(relay)
    relay.close()
    relay = firn.relay(model, torch.optim.SGD(model.parameters(), lr=.1), micro_batches=2, keep=3)
    assert "the last 3 are kept" in repr(relay)
    relay.close()
