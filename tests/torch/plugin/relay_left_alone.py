"""Models and programs that a relay by itself leaves alone, and what it says of them."""

import pytest
import torch
from torch import nn

from relay_models import Block, Words, loss_of, word_parts


def plain_steps(model, optimizer, steps=4, loss=loss_of):
    losses = []
    for (words,) in word_parts(1, steps, rows=6):
        optimizer.zero_grad()
        lost = loss(model, words)
        lost.backward()
        optimizer.step()
        losses.append(lost.detach())
    return losses


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
