"""What a relay by itself leaves alone: one line says why, and every bit is the plain program's."""

import contextlib
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from relay_models import Block, Words, firn, loss_of, word_parts

doors_of = __import__("firn.relay.doors", fromlist=["Doors"])


def plain_steps(model, optimizer, steps=4, loss=loss_of):
    losses = []
    for (words,) in word_parts(1, steps, rows=6):
        optimizer.zero_grad()
        lost = loss(model, words)
        lost.backward()
        optimizer.step()
        losses.append(lost.detach())
    return losses


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


class Normed(Block):
    def __init__(self, width, drop=0.0):
        super().__init__(width, drop)
        self.batch = nn.BatchNorm1d(width)

    def forward(self, value):
        return self.batch(super().forward(value).transpose(1, 2)).transpose(1, 2)


class CountsInAttribute(Block):
    calls = 0

    def forward(self, value):
        self.calls += 1
        return super().forward(value) * (1 + self.calls % 3)


class CountsInTensor(Block):
    def __init__(self, width, drop=0.0):
        super().__init__(width, drop)
        self.calls = torch.zeros(())

    def forward(self, value):
        self.calls += 1
        return super().forward(value) * (1 + self.calls % 3)


class CountsInBuffer(Block):
    def __init__(self, width, drop=0.0):
        super().__init__(width, drop)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, value):
        self.calls += 1
        return super().forward(value)


class OwnGenerator(Block):
    """Nothing says that a call changes it."""

    def __init__(self, width, drop=0.0):
        super().__init__(width, drop)
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, value):
        return super().forward(value + 0.1 * torch.randn(value.shape, generator=self.generator))


class Numpys(Block):
    def forward(self, value):
        numpy = pytest.importorskip("numpy")
        return super().forward(value * float(numpy.random.rand()))


class InPlace(Block):
    def forward(self, value):
        return super().forward(value.mul_(1.01) if not value.is_leaf else value)


class Balanced(Block):
    """As routers of experts: a loss that the layer does not return."""

    def forward(self, value):
        value = super().forward(value)
        self.loss = value.square().mean()
        return value


class Collects(Block):
    def __init__(self, width, drop=0.0):
        super().__init__(width, drop)
        self.losses = []

    def forward(self, value):
        value = super().forward(value)
        self.losses.append(value.square().mean())
        return value


KEPT: list = []


class KeepsElsewhere(Block):
    def forward(self, value):
        value = super().forward(value)
        KEPT.append(value.square().mean())
        return value


class Says(Block):
    """An argument of a kind that may hold state."""

    def forward(self, value, cache=None):
        return super().forward(value)


class WithCache(Words):
    def forward(self, words):
        value, cache = self.embedding(words), object()
        for block in self.blocks:
            value = block(value, cache)
        return self.head(value)


class Shared(Block):
    """Returns two names of one memory."""

    def forward(self, value):
        value = super().forward(value)
        return value, value[:, 1:]


class ChangesResult(Words):
    def forward(self, words):
        value = self.embedding(words)
        for block in self.blocks:
            value, later = block(value)
            with torch.no_grad():
                value.detach().clamp_(-0.1, 0.1)
        return self.head(value)


class ReturnsMore(Block):
    """At some time an object, behind a draw of random numbers."""

    more = False

    def forward(self, value):
        value = super().forward(value)
        return (value, object()) if ReturnsMore.more else (value, None)


class TakesFirst(Words):
    def forward(self, words):
        value = self.embedding(words)
        for block in self.blocks:
            value, _ = block(value)
        return self.head(value)


def returning_more(model, optimizer):
    ReturnsMore.more = False
    losses = plain_steps(model, optimizer, 3)
    ReturnsMore.more = True
    return losses + plain_steps(model, optimizer, 2)


def with_balance(model, words):
    return loss_of(model, words) + 0.1 * sum(each.loss for each in model.blocks)


def with_collected(model, words):
    lost = loss_of(model, words)
    return lost + 0.1 * sum(each.losses.pop() for each in model.blocks)


def with_numpy(model, optimizer):
    numpy = pytest.importorskip("numpy")
    numpy.random.seed(1)
    losses = plain_steps(model, optimizer)
    return losses + [torch.tensor(numpy.random.rand())]


def hooked_inside(model, optimizer):
    seen = []
    model.blocks[1].inner.register_forward_hook(lambda _, args, out: seen.append(out.mean()))
    return plain_steps(model, optimizer) + seen


def hooked_later(model, optimizer):
    return plain_steps(model, optimizer, 2) + hooked_inside(model, optimizer)


def hooked_parameter(model, optimizer):
    """The optimizer steps in the backward pass, in effect."""
    seen = []
    model.blocks[1].inner.weight.register_post_accumulate_grad_hook(
        lambda parameter: seen.append(parameter.grad.clone()))
    return plain_steps(model, optimizer) + seen


def evaluated_before_backward(model, optimizer):
    losses = []
    for (words,) in word_parts(1, 4, rows=6):
        optimizer.zero_grad()
        model.train()
        lost = loss_of(model, words)
        model.eval()
        lost.backward()
        optimizer.step()
        losses.append(lost)
    return losses


def second_call_under_autocast(model, optimizer):
    def twice(model, words):
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model, words) + loss_of(model, words.flip(1))
    return plain_steps(model, optimizer, loss=twice)


def checks_shape(model, optimizer):
    """Rows that depend on each other: found when parts are first tried, in the second step."""
    return plain_steps(model, optimizer)


class Mixing(Block):
    def forward(self, value):
        return super().forward(value - value.mean(0, keepdim=True))


def words(block):
    return lambda: Words(block=block, drop=0.1)


class Odd(torch.Tensor):
    """A class of the program's."""


class WithOdd(Words):
    def forward(self, words):
        value = self.embedding(words).as_subclass(Odd)
        for block in self.blocks:
            value = block(value)
        return self.head(value).as_subclass(torch.Tensor)


CASES = {
    "subclass": (lambda: WithOdd(block=Block), plain_steps, "is given a Odd of layout"),
    "batch norm": (words(Normed), plain_steps, "blocks.0.batch is a BatchNorm1d with running "
                   "statistics"),
    "counter": (words(CountsInAttribute), plain_steps, "changes 'calls' of it in each run"),
    "tensor": (words(CountsInTensor), plain_steps, "changes 'calls' of it in place"),
    "buffer": (words(CountsInBuffer), plain_steps, "changes its buffer calls in each forward pass"),
    "generator": (words(OwnGenerator), plain_steps, "draws from its generator 'generator'"),
    "numpy": (words(Numpys), with_numpy, "draws from numpy.random"),
    "in place": (words(InPlace), plain_steps, "changes one of its arguments in place"),
    "balance": (words(Balanced), lambda *both: plain_steps(*both, loss=with_balance),
                "changes 'loss' of it in each run"),
    "collected": (words(Collects), lambda *both: plain_steps(*both, loss=with_collected),
                  "changes 'losses' of it in place"),
    "cache": (lambda: WithCache(block=Says), plain_steps, "is given a builtins.object"),
    "results": (lambda: ChangesResult(block=Shared), plain_steps, "returned tensors that share "
                "memory, and one of them was changed in place"),
    "hook": (words(Block), hooked_inside, "blocks.1 (Block) has a hook on a Linear in it"),
    "hook later": (words(Block), hooked_later, "blocks.1 (Block) has a hook on a Linear in it"),
    "result later": (lambda: TakesFirst(block=ReturnsMore, drop=0.2), returning_more,
                     "returned a builtins.object"),
    "parameter": (words(Block), hooked_parameter, "has a hook on a parameter's gradient"),
    "eval": (words(Block), evaluated_before_backward, "was switched between train() and eval()"),
    "autocast": (words(Block), second_call_under_autocast, "is called twice under autocast"),
    "rows": (words(Mixing), checks_shape, "has other results over parts of the batch"),
}


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
