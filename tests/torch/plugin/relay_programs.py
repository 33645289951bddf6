"""For the tests of a relay by itself: doors that close at the test's end, and a program run with
and without them."""

import pytest
import torch
from torch import nn

from relay_models import Block, firn, loss_of, word_parts

doors_of = __import__("firn.relay.doors", fromlist=["Doors"])


@pytest.fixture
def automatic():
    """automatic(micro_batches): opens the doors, until the test ends or opens others."""
    opened = []

    def open_doors(micro_batches):
        while opened:
            opened.pop().close()
        if micro_batches:
            opened.append(doors_of.Doors(micro_batches))
    yield open_doors
    open_doors(0)


def words_of(steps, rows=6, seed=1):
    return [words for (words,) in word_parts(1, steps, seed=seed, rows=rows)]


def results(model, losses):
    return [each.detach().clone() for each in (*losses, *model.parameters(), *model.buffers())] + \
        [each.grad for each in model.parameters() if each.grad is not None]


def equal(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


def close(one, other):
    for first, second in zip(one, other, strict=True):
        torch.testing.assert_close(first, second, rtol=2e-2, atol=2e-3)


class Counting(Block):
    """Counts the runs of all blocks in the class's own list, which nothing else looks at."""

    runs: list = []

    def forward(self, value):
        Counting.runs.append(torch.is_grad_enabled())
        return super().forward(value)


def plain_steps(model, optimizer, steps=4, rows=6):
    losses = []
    for words in words_of(steps, rows):
        loss = loss_of(model, words)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss)
    return losses


def run(train, make, groups=None):
    torch.manual_seed(0)
    model = make()
    given = model.parameters() if groups is None else groups(model)
    optimizer = torch.optim.AdamW(given, lr=1e-2)
    return results(model, train(model, optimizer)), firn.relay.of(model)
