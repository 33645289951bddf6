"""FIRN_RELAY: a relay by itself, in programs that know nothing of it. With one micro-batch every
bit is the plain program's; the first step is plain, and from the second on layers run again."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from relay_models import Block, Words, firn, loss_of
from relay_programs import (Counting, automatic, close, equal, plain_steps,  # noqa: F401
                            results, run, words_of)


def accumulating(model, optimizer):
    """Two micro-steps a step, a penalty on all parameters, and gradients that stay allocated."""
    losses = []
    for number, words in enumerate(words_of(8)):
        penalty = sum(each.square().sum() for each in model.parameters())
        loss = (loss_of(model, words) + 0.01 * penalty) / 2
        loss.backward()
        losses.append(loss)
        if number % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return losses


def twice_before_backward(model, optimizer):
    losses = []
    words = words_of(8)
    for first, second in zip(words[::2], words[1::2]):
        loss = loss_of(model, first) + loss_of(model, second).square()
        loss.backward()
        optimizer.step()
        losses.append(loss)
        if len(losses) == 2:
            optimizer.zero_grad()
    return losses


def scaled_under_autocast(model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 117, growth_interval=2)
    losses = []
    for words in words_of(7):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, words)
        optimizer.zero_grad()
        scaler.scale(loss * 2.0 ** 10).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss)
    return losses


def evaluated_in_between(model, optimizer):
    losses = []
    for words in words_of(4):
        model.train()
        losses += plain_steps(model, optimizer, 1)
        model.eval()
        losses.append(loss_of(model, words))  # (with gradients, and no backward pass)
        with torch.no_grad():
            losses.append(loss_of(model, words))
        assert losses[-1].equal(losses[-2])
    return losses


def any_backward_pass(model, optimizer):
    """retain_graph, grad(), backward(inputs=...)."""
    losses = []
    for words in words_of(3):
        loss = loss_of(model, words)
        some = [model.blocks[1].inner.weight, model.embedding.weight]
        slopes = torch.autograd.grad(loss, some, retain_graph=True)
        loss.backward(inputs=some, retain_graph=True)
        loss.backward(retain_graph=True)
        optimizer.step()
        losses += [loss, *slopes]
    return losses


def by_slopes_of_slopes(model, optimizer):
    losses = []
    for words in words_of(3):
        loss = loss_of(model, words)
        some = [model.blocks[1].inner.weight, model.embedding.weight]
        slopes = torch.autograd.grad(loss, some, create_graph=True)
        (loss + sum(each.square().sum() for each in slopes)).backward()
        optimizer.step()
        losses.append(loss)
        if len(losses) == 1:
            optimizer.zero_grad()
    return losses


class Checkpointed(Words):
    reentrant = False

    def forward(self, words):
        value = self.embedding(words)
        for block in self.blocks:
            value = checkpoint(block, value, use_reentrant=self.reentrant)
        return self.head(value)


class Reentrant(Checkpointed):
    reentrant = True


PROGRAMS = [plain_steps, accumulating, twice_before_backward, scaled_under_autocast,
            evaluated_in_between, any_backward_pass]


@pytest.mark.parametrize("train", PROGRAMS)
@pytest.mark.parametrize("tied", [False, True])
def test_one_micro_batch_has_the_programs_bits(automatic, capfd, train, tied):
    make = lambda: Words(tied=tied, drop=0.2, block=Counting)  # noqa: E731
    Counting.runs.clear()
    plain, _ = run(train, make)
    runs = len(Counting.runs)
    automatic(1)
    relayed, relay = run(train, make)
    assert equal(relayed, plain)
    assert relay is not None and relay.layers == ["blocks.0", "blocks.1", "blocks.2"]
    assert capfd.readouterr().err == \
        "firn: relay: 3 layers of Words.blocks, 1 micro-batch, from AdamW's second step on\n"
    again = len(Counting.runs) - 2 * runs  # (a third of the calls in evaluated_in_between trains)
    assert again >= (runs / 3 if train is evaluated_in_between else 0.4 * runs)


def test_a_graph_of_the_backward_pass(automatic, capfd):
    make = lambda: Words(tied=False)  # noqa: E731
    plain, _ = run(by_slopes_of_slopes, make)
    automatic(2)
    relayed, relay = run(by_slopes_of_slopes, make)
    assert relay is not None
    close(relayed, plain)
    capfd.readouterr()
    automatic(1)
    relayed, relay = run(by_slopes_of_slopes, make)
    assert relay is None and equal(relayed, plain)
    assert "firn: relay: off for Words: a backward pass with create_graph=True reaches layer " \
        "blocks.2 (Block): its bits would be others" in capfd.readouterr().err


class Twice(Words):
    """Each layer's input depends on the layer's own parameters."""

    def forward(self, words):
        value = self.embedding(words)
        for block in self.blocks:
            value = block(block(value))
        return self.head(value)


def test_a_graph_of_the_backward_pass_where_layers_run_twice(automatic):
    plain, _ = run(by_slopes_of_slopes, lambda: Twice(tied=False).double())
    automatic(2)
    relayed, relay = run(by_slopes_of_slopes, lambda: Twice(tied=False).double())
    assert relay is not None
    for first, second in zip(relayed, plain, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("train", PROGRAMS)
@pytest.mark.parametrize("micro_batches", [2, 4])
def test_several_micro_batches_are_close(automatic, train, micro_batches):
    make = lambda: Words(tied=False)  # noqa: E731
    plain, _ = run(train, make)
    automatic(micro_batches)
    relayed, relay = run(train, make)
    assert relay is not None
    close(relayed, plain)


def test_layers_run_in_parts_from_the_second_step_on(automatic):
    automatic(3)
    torch.manual_seed(0)
    model = Words(block=Counting)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = []
    for number, words in enumerate(words_of(5)):
        model.blocks[1].norm.weight.requires_grad_(number < 3)
        Counting.runs.clear()
        loss_of(model, words).backward()
        counts.append(sum(Counting.runs))  # with gradients
        optimizer.step()
    # The first step: once, and once more to compare. Then three parts, forward and backward. In the
    # fourth step one layer's calls are of another kind.
    assert counts == [3 * 2, 3 * 2 * 3, 3 * 2 * 3, 2 + 2 * 2 * 3, 3 * 2 * 3]
    Counting.runs.clear()
    loss_of(model.eval(), words).backward()  # it is left alone
    assert Counting.runs == [True] * 3


@pytest.mark.parametrize("kind", [Checkpointed, Reentrant])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_programs_own_checkpoints(automatic, kind, micro_batches):
    make = lambda: kind(tied=False, drop=0.2 if micro_batches == 1 else 0.0)  # noqa: E731
    plain, _ = run(plain_steps, make)
    automatic(micro_batches)
    relayed, relay = run(plain_steps, make)
    assert relay is not None
    if micro_batches == 1:
        assert equal(relayed, plain)
    close(relayed, plain)


def frozen(model):
    """LoRA: layers whose weights stay, but for some."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("inner.weight"))
    return [each for each in model.parameters() if each.requires_grad]


def in_groups(model):
    return [{"params": model.blocks.parameters(), "lr": 1e-3},
            {"params": [model.embedding.weight], "weight_decay": 0.0}]


@pytest.mark.parametrize("groups", [frozen, in_groups])
def test_frozen_parameters_and_groups(automatic, groups):
    make = lambda: Words(drop=0.1)  # noqa: E731
    plain, _ = run(plain_steps, make, groups)
    automatic(1)
    relayed, relay = run(plain_steps, make, groups)
    assert equal(relayed, plain) and relay is not None


def thawing(model, optimizer):
    """A layer that begins to train later."""
    losses = plain_steps(model, optimizer, 2)
    for parameter in model.blocks[0].parameters():
        parameter.requires_grad_(True)
    optimizer.add_param_group({"params": list(model.blocks[0].parameters())})
    return losses + plain_steps(model, optimizer, 3)


def all_but_one(model):
    model.blocks[0].requires_grad_(False)
    model.embedding.requires_grad_(False)
    return [each for each in model.parameters() if each.requires_grad]


def test_a_layer_that_thaws(automatic):
    make = lambda: Words(tied=False)  # noqa: E731
    plain, _ = run(thawing, make, all_but_one)
    automatic(1)
    relayed, relay = run(thawing, make, all_but_one)
    assert equal(relayed, plain) and relay is not None


class Critic(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width) for _ in range(3)))
        self.head = nn.Linear(width, 1)

    def forward(self, value):
        return self.head(self.blocks(value)).mean((1, 2))


def adversaries():
    """Two models, two optimizers, and a penalty on the slope (WGAN-GP)."""
    torch.manual_seed(0)
    maker, critic = nn.Sequential(*(Block(12) for _ in range(3))), Critic()
    makes, judges = (torch.optim.Adam(each.parameters(), lr=1e-3) for each in (maker, critic))
    losses = []
    for _ in range(4):
        real, fake = torch.randn(6, 5, 12), maker(torch.randn(6, 5, 12))
        between = ((real + fake) / 2).detach().requires_grad_()
        slope, = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty
        judges.zero_grad()
        loss.backward()
        judges.step()
        makes.zero_grad()
        lost = -critic(fake).mean()
        lost.backward()
        makes.step()
        losses += [loss, lost]
    found = results(maker, losses) + results(critic, ())
    return found, [firn.relay.of(each) for each in (maker, critic)]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_two_models_with_a_penalty_on_the_slope(automatic, capfd, micro_batches):
    plain, _ = adversaries()
    automatic(micro_batches)
    relayed, relays = adversaries()
    said = sorted(each.partition(" micro")[0] for each in capfd.readouterr().err.splitlines())
    assert said[:2] == [f"firn: relay: 3 layers of Critic.blocks, {micro_batches}",
                        f"firn: relay: 3 layers of Sequential, {micro_batches}"]
    if micro_batches == 1:
        assert equal(relayed, plain)
        assert relays[0] is not None and relays[1] is None and len(said) == 3
    else:
        close(relayed, plain)
        assert None not in relays and relays[0] is not relays[1] and len(said) == 2


def test_a_model_of_parts_that_are_called_one_by_one(automatic, capfd):
    """Nothing is called as the whole model."""
    def make():
        return nn.ModuleDict({"token": nn.Embedding(41, 12), "body": Critic(), "head":
                              nn.Linear(12, 41)})

    def train(model, optimizer):
        losses = []
        for words in words_of(4):
            value = model["body"].blocks(model["token"](words[:, :-1]))
            loss = functional.cross_entropy(model["head"](value).flatten(0, 1),
                                            words[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return losses
    plain, _ = run(train, make)
    automatic(1)
    relayed, relay = run(train, make)
    assert equal(relayed, plain) and relay is not None
    assert capfd.readouterr().err.count("\n") == 1
