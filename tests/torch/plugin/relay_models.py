"""For the tests of firn.relay, which run on CPU tensors in their own process: a training job done
twice, by the plain loop and by the relay, and a small model."""

import os
import pathlib
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional

if os.environ.get("FIRN_TEST_BUILD"):  # the sources, though the start-up line of .venv's has run
    for name in [name for name in sys.modules if name.partition(".")[0] == "firn"]:
        del sys.modules[name]
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "pytorch_plugin"))

import firn  # noqa: E402

WORDS = 41
torch.set_num_threads(1)  # sums would be cut by the number of threads


class Block(nn.Module):
    def __init__(self, width, drop=0.0):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(drop)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, value):
        return value + self.drop(self.outer(functional.gelu(self.inner(self.norm(value)))))


class Words(nn.Module):
    """Embedding, blocks, head; the head's weight is the embedding's where `tied`."""

    def __init__(self, layers=3, width=12, tied=True, drop=0.0, block=Block):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(block(width, drop) for _ in range(layers))
        self.head = nn.Linear(width, WORDS, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, words):
        value = self.embedding(words)
        for block in self.blocks:
            value = block(value)
        return self.head(value)


def loss_of(model, words):
    return functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


def word_parts(micro_batches, steps, seed=1, rows=2, length=7):
    generator = torch.Generator().manual_seed(seed)
    return [list(torch.randint(WORDS, (rows * micro_batches, length), generator=generator)
                 .chunk(micro_batches)) for _ in range(steps)]


def quietly(call, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return call(*arguments, **options)


class Job:
    """A run's outcome: losses, gradients as the last step saw them, parameters, states."""

    def __init__(self, make, steps, compute=loss_of, optimizer=torch.optim.AdamW, relay=True,
                 seed=0, clip=None, scaler=None, before=None, options=None, **of_optimizer):
        torch.manual_seed(seed)
        self.model = make()
        if before is not None:
            before(self.model)
        self.optimizer = optimizer(self.model.parameters(), **{"lr": 1e-2, **of_optimizer})
        self.losses, self.relay = [], None
        scaler = scaler and scaler()
        if relay:
            self.relay = quietly(firn.relay, self.model, self.optimizer,
                                 max(map(len, steps)), clip=clip, scaler=scaler,
                                 **(options or {}))
        for parts in steps:
            def part_loss(part, count=len(parts)):
                return compute(self.model, part) / count
            if relay:
                self.losses.append(quietly(self.relay.step, part_loss, parts))
            else:
                self.losses.append(self._loop(part_loss, parts, clip, scaler))
        if relay:
            self.relay.close()

    def _loop(self, part_loss, parts, clip, scaler):
        total = None
        for part in parts:
            loss = part_loss(part)
            (loss if scaler is None else scaler.scale(loss)).backward()
            total = loss.detach() if total is None else total + loss.detach()
        if scaler is not None and clip is not None:
            scaler.unscale_(self.optimizer)
        if clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        self.optimizer.zero_grad()
        return total

    def results(self):
        found = {"loss %d" % number: loss for number, loss in enumerate(self.losses)}
        for name, parameter in self.model.named_parameters():
            found[name] = parameter.detach()
            found[name + " gradient"] = parameter.grad
            for key, value in self.optimizer.state.get(parameter, {}).items():
                found["%s %s" % (name, key)] = value
        return found


def different(one, other):
    """The names of the results that differ in a bit."""
    first, second = one.results(), other.results()
    assert first.keys() == second.keys()
    return [name for name in first if not same(first[name], second[name])]


def same(one, other):
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and one == other


def check_same_bits(make, steps, **options):
    """Runs it both ways, and returns the relay's."""
    plain = Job(make, steps, relay=False,
                **{key: value for key, value in options.items() if key != "options"})
    relayed = Job(make, steps, **options)
    assert different(relayed, plain) == []
    moved = [name for name, value in relayed.model.named_parameters()
             if value.requires_grad]
    assert moved and not torch.equal(relayed.losses[0], relayed.losses[-1])
    return relayed
