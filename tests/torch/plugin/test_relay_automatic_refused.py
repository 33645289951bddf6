"""Models that a relay by itself leaves alone: one line says why, and bits are the plain program's."""

import contextlib
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from relay_left_alone import CASES, Mixing, Normed, plain_steps
from relay_models import Block, Words, firn, loss_of, word_parts

doors_of = __import__("firn.relay.doors", fromlist=["Doors"])


def both_ways(capfd, make, train=plain_steps, micro_batches=2, optimizer=torch.optim.AdamW):
    """The lines of the run with open doors, whose results are the plain run's."""
    found = []
    for parts in (0, micro_batches):
        capfd.readouterr()
        doors = doors_of.Doors(parts) if parts else contextlib.nullcontext()
        with contextlib.closing(doors) if parts else doors:
            torch.manual_seed(0)
            model = make()
            losses = train(model, optimizer(model.parameters(), lr=1e-2))
            lines = capfd.readouterr().err.splitlines()
        found.append([each.detach().clone() for each in
                      (*losses, *model.parameters(), *model.buffers())])
        assert firn.relay.of(model) is None
    one, other = found
    assert len(one) == len(other) and all(map(torch.equal, one, other))
    return lines


@pytest.mark.parametrize("name", CASES)
def test_is_left_alone(capfd, name):
    make, train, says = CASES[name]
    parts = 1 if name.endswith("later") else 2  # (steps before it are in parts)
    lines = [each for each in both_ways(capfd, make, train, parts) if "off for" in each]
    assert len(lines) == 1, lines
    kind = type(make()).__name__
    assert lines[0].startswith(f"firn: relay: off for {kind}: ") and says in lines[0], lines[0]


CALLS = itertools.count()


class CountsElsewhere(Block):
    def forward(self, value):
        return super().forward(value) * (1 + next(CALLS) % 3)


def test_state_that_nothing_shows(capfd):
    """(A second run has moved it on by then: no bits are promised.)"""
    with contextlib.closing(doors_of.Doors(2)):
        model = Words(block=CountsElsewhere)
        plain_steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert firn.relay.of(model) is None
    assert "(CountsElsewhere) has other results in a second run with the same random numbers" in \
        capfd.readouterr().err


KEPT: list = []


class KeepsElsewhere(Block):
    def forward(self, value):
        value = super().forward(value)
        KEPT.append(value.square().mean())
        return value


def test_tensors_that_outlive_a_layer_elsewhere(capfd):
    KEPT.clear()
    with contextlib.closing(doors_of.Doors(2)):
        model = Words(block=KeepsElsewhere)
        plain_steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert firn.relay.of(model) is None
    assert "(KeepsElsewhere) computes a tensor that outlives it and is no result" in \
        capfd.readouterr().err


def alone(line, lines):
    assert len(lines) == 1 and line in lines[0], lines


def test_models_without_layers(capfd):
    def make():
        return nn.Sequential(nn.Embedding(41, 12), nn.Linear(12, 41))
    alone("firn: relay: off for AdamW: Sequential has no ModuleList or Sequential of modules that "
          "repeat", both_ways(capfd, make))


def test_modules_that_are_never_called(capfd):
    def by_hand(model, optimizer):
        def loss(model, words):
            return functional.embedding(words, model.embedding.weight).square().mean()
        return plain_steps(model, optimizer, loss=loss)
    alone("firn: relay: off for AdamW: it has stepped, and no module in train() mode that has its "
          "parameters was called with gradients", both_ways(capfd, Words, by_hand))


def test_closures(capfd):
    def train(model, optimizer):
        losses = []
        for (words,) in word_parts(1, 2, rows=6):
            def closure():
                optimizer.zero_grad()
                lost = loss_of(model, words)
                lost.backward()
                return lost
            losses.append(optimizer.step(closure).detach())
        return losses
    alone("firn: relay: off for Words: LBFGS steps with a closure",
          both_ways(capfd, Words, train, optimizer=torch.optim.LBFGS))


@pytest.mark.parametrize("by_call", [False, True])
def test_compiled_models(capfd, by_call):
    def train(model, optimizer):
        if by_call:
            model.compile(backend="eager")
            return plain_steps(model, optimizer)
        return plain_steps(torch.compile(model, backend="eager"), optimizer)
    lines = both_ways(capfd, lambda: Words(tied=False), train)
    said = [each for each in lines if each.startswith("firn:")]
    alone("was called with gradients (what torch.compile traces is not seen)" if by_call else
          "is compiled: the layers' forward methods have to be called by themselves", said)


def test_wrappers_of_data_parallelism(capfd):
    alone("firn: relay: off for DataParallel: the model is a DataParallel, which counts backward "
          "passes", both_ways(capfd, lambda: nn.DataParallel(Words())))


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0,
                                         world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_ddp(capfd, process_group):
    parallel = nn.parallel.DistributedDataParallel
    lines = both_ways(capfd, lambda: parallel(Words()))
    alone("firn: relay: off for DistributedDataParallel: the model is a DistributedDataParallel",
          [each for each in lines if each.startswith("firn:")])

    def wrapped_later(model, optimizer):
        return plain_steps(model, optimizer, 2) + plain_steps(parallel(model), optimizer)
    lines = both_ways(capfd, Words, wrapped_later, 1)
    assert "off for Words: it is in a DistributedDataParallel" in lines[-1]


def test_one_micro_batch_needs_no_rows(capfd):
    """Layers that mix rows run whole."""
    capfd.readouterr()
    with contextlib.closing(doors_of.Doors(1)):
        model = Words(block=Mixing)
        plain_steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert firn.relay.of(model) is not None
    assert "off" not in capfd.readouterr().err


def test_a_fault_of_the_doors_is_a_line(capfd, monkeypatch):
    monkeypatch.setattr(doors_of.layers_of, "repeated", lambda _: 1 / 0)
    lines = both_ways(capfd, Words)
    assert lines == ["firn: relay: off: ZeroDivisionError: division by zero"]


def test_modules_that_no_set_can_hold(capfd):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(12, 41)
            self.embedding = nn.Embedding(41, 12)

        def forward(self, words):
            return self.linear(self.embedding(words))

        __hash__ = None

    doors = doors_of.Doors(2)
    with contextlib.closing(doors):
        model = Outer()
        optimizer = torch.optim.SGD([model.linear.weight], lr=0.1)
        loss_of(model, torch.ones(2, 5, dtype=torch.long)).backward()
        optimizer.step()
    assert capfd.readouterr().err == \
        "firn: relay: off: TypeError: unhashable type: 'Outer'\n"


def test_standard_error_that_is_closed(monkeypatch):
    import sys
    for stream in (None, open("/dev/full", "w")):
        monkeypatch.setattr(sys, "stderr", stream)
        with contextlib.closing(doors_of.Doors(2)):
            model = Words()
            plain_steps(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_lines_are_said_once(capfd):
    with contextlib.closing(doors_of.Doors(2)):
        for _ in itertools.repeat(None, 3):
            model = Words(block=Normed)
            plain_steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert capfd.readouterr().err.count("firn: relay: off for Words") == 1
