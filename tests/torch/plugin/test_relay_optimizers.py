"""An optimizer that steps for all layers at once is never stepped for one of them."""

import itertools
import random

import pytest
import torch
from torch import nn

from relay_models import Words, check_same_bits, firn, loss_of, quietly, word_parts


class Scaled(torch.optim.Optimizer):
    """SGD, whose rate is `rate()`'s, once a step."""

    def __init__(self, parameters, lr, **options):
        super().__init__(parameters, {"lr": lr, **options})

    @torch.no_grad()
    def step(self, closure=None):
        rate = self.rate()
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    each.add_(each.grad, alpha=-group["lr"] * rate)


class ByNumber(Scaled):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr, count=0)

    def rate(self):
        for group in self.param_groups:
            group["count"] += 1
        return 1 / max(group["count"] for group in self.param_groups)


class ByTensor(Scaled):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr, count=torch.zeros(()))

    def rate(self):
        for group in self.param_groups:
            group["count"] += 1
        return 1 / float(group["count"])


class ByList(Scaled):
    """The first steps are all alike."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.history = []

    def rate(self):
        self.history.append(1)
        return 1 / max(1, len(self.history) - 1)


class ByDictionary(ByList):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.counts = {"steps": 0}

    def rate(self):
        self.counts["steps"] += 1
        return 1 / self.counts["steps"]


class ByState(Scaled):
    def rate(self):
        state = self.state["all"]
        state["steps"] = state.get("steps", 0) + 1
        return 1 / state["steps"]


class Noisy(Scaled):
    def rate(self):
        return 1 + 0.1 * float(torch.randn(()))


class PythonsNoise(Scaled):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        random.seed(1)

    def rate(self):
        return 1 + 0.1 * random.random()


class Counter:
    steps = 0


class ByObject(Scaled):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.counter = Counter()

    def rate(self):
        self.counter.steps += 1
        return 1 / self.counter.steps


class ByIterator(Scaled):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.numbers = itertools.count(1)

    def rate(self):
        return 1 / next(self.numbers)


class Flagged(Scaled):
    """Every second step is a small one."""
    odd = False

    def rate(self):
        self.odd = not self.odd
        return 1.0 if self.odd else 0.1


WHY = {ByNumber: "'count' changes", ByTensor: "'count' changes", ByList: "'history' changes",
       ByDictionary: "'counts' changes", ByState: "'all' changes",
       Noisy: "draws random numbers", PythonsNoise: "draws random numbers",
       ByObject: "'counter' changes", Flagged: "'odd' changes",
       ByIterator: "could not put back 'numbers', a itertools.count"}


@pytest.mark.parametrize("kind", WHY)
def test_its_own_state(kind):
    torch.manual_seed(0)
    model = Words()
    relay = firn.relay(model, kind(model.parameters(), lr=0.1), 2)
    with pytest.warns(RuntimeWarning, match=f"{kind.__name__} steps once .*{WHY[kind]}"):
        relay.step(lambda part: loss_of(model, part), word_parts(2, 1)[0])
    assert not relay._update.eager
    check_same_bits(Words, word_parts(2, 4), optimizer=kind, lr=0.1)


@pytest.mark.parametrize("kind", [ByNumber, torch.optim.AdamW])
def test_layers_that_are_frozen_in_the_first_step_prove_nothing(kind):
    def run(relayed):
        torch.manual_seed(0)
        model = Words()
        optimizer = kind(model.parameters(), lr=0.1)
        relay = firn.relay(model, optimizer, 2) if relayed else None
        for number, parts in enumerate(word_parts(2, 5)):
            model.blocks.requires_grad_(number > 0)
            if relay:
                quietly(relay.step, lambda part: loss_of(model, part), parts)
                assert number > 0 or not relay._update.eager
            else:
                for part in parts:
                    loss_of(model, part).backward()
                optimizer.step()
                optimizer.zero_grad()
        assert relay is None or relay._update.eager == (kind is torch.optim.AdamW)
        return list(model.parameters())
    assert all(map(torch.equal, run(True), run(False)))


class Prepared(Scaled):
    """Makes its tables in the first step, as optimizers of 8 bits do."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.tables, self.options, self.ready = {}, Counter(), False

    def rate(self):
        if not self.ready:
            self.ready, self.options.rate = True, 0.5
            self.tables["rate"] = torch.tensor(0.5)
        return float(self.tables["rate"]) * self.options.rate


def test_what_the_first_step_prepares_changes_no_bit():
    relayed = check_same_bits(Words, word_parts(2, 4), optimizer=Prepared, lr=0.1)
    assert relayed.relay._update.eager


def test_a_step_without_gradients_proves_nothing():
    torch.manual_seed(0)
    model = Words()
    optimizer = ByNumber(model.parameters(), lr=0.1)
    relay = firn.relay(model, optimizer, 2)
    optimizer.step()
    assert not relay._update.eager
    with pytest.warns(RuntimeWarning, match="steps once for all layers"):
        relay.step(lambda part: loss_of(model, part), word_parts(2, 1)[0])
    assert [group["count"] for group in optimizer.param_groups] == [2]


@pytest.mark.parametrize("options", [{"eager": 0}, {"eager": 1}, {"eager": 1.0}, {"split": "no"},
                                     {"split": 1}, {"scaler": 3}, {"clip": "1"}, {"clip": True}],
                         ids=str)
def test_options_of_other_types(options):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with pytest.raises(ValueError, match=f"firn.relay: {next(iter(options))}="):
        firn.relay(model, torch.optim.SGD(model.parameters()), 2, **options)
