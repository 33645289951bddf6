"""Wrong results of firn.relay cannot be had silently: what cannot run twice is refused by name."""

import threading

import pytest
import torch
from torch import nn

from relay_models import Block, Words, check_same_bits, firn, loss_of, quietly, word_parts

Refused = firn.relay.Refused


def make_relay(model=None, micro_batches=2, optimizer=torch.optim.SGD, before=0, lr=0.1,
               **options):
    """A relay after `before` steps."""
    torch.manual_seed(0)
    model = Words() if model is None else model
    relay = quietly(firn.relay, model, optimizer(model.parameters(), lr=lr), micro_batches,
                    **options)
    for parts in word_parts(micro_batches, before):
        quietly(relay.step, lambda part: loss_of(model, part), parts)
    return relay


def with_layers(*layers):
    model = Words(layers=1)
    model.blocks = nn.ModuleList(layers)
    return model


def values(model):
    return [each.detach().clone() for each in (*model.parameters(), *model.buffers())]


def refused_in_step(relay, match, compute=None):
    """In the next step, before anything was changed."""
    before = values(relay.model)
    with pytest.raises(Refused, match=match):
        quietly(relay.step, compute or (lambda part: loss_of(relay.model, part)),
                word_parts(2, 1)[0])
    assert all(map(torch.equal, values(relay.model), before))
    assert all(each.grad is None for each in relay.model.parameters())
    assert not relay_threads()


def relay_threads():
    return [each for each in threading.enumerate() if each.name.startswith("relay")]


class Normed(Block):
    def __init__(self, width=12, **options):
        super().__init__(width)
        self.more = nn.BatchNorm1d(width, **options)

    def forward(self, value):
        return super().forward(self.more(value.transpose(1, 2)).transpose(1, 2))


def test_batch_norm():
    with pytest.raises(Refused, match=r"blocks.0.more is a BatchNorm1d with running statistics"):
        make_relay(with_layers(Normed(), Normed()))
    make_relay(with_layers(*(Normed(track_running_stats=False) for _ in range(2))), before=3)


class Counting(Block):
    def __init__(self, width=12):
        super().__init__(width)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, value):
        self.calls += 1
        return super().forward(value)


def test_buffers_that_change():
    relay = make_relay(with_layers(Counting(), Counting()))
    with pytest.raises(Refused, match=r"blocks.0 \(Counting\) changes its buffer calls"):
        relay.step(lambda part: loss_of(relay.model, part), word_parts(2, 1)[0])


class InPlace(Block):
    def forward(self, value):
        return super().forward(value.mul_(2))


def test_arguments_changed_in_place():
    refused_in_step(make_relay(with_layers(InPlace(12), InPlace(12))),
                    r"blocks.0 \(InPlace\) changes one of its arguments in place")


class Appending(Block):
    def forward(self, value, seen):
        seen.append(value)
        return super().forward(value)


def test_lists_that_grow():
    def compute(part):
        value, seen = model.embedding(part), []
        for block in model.blocks:
            value = block(value, seen)
        return value.sum()
    model = with_layers(Appending(12), Appending(12))
    refused_in_step(make_relay(model), "changes a list or dictionary", compute)


class State:
    pass


class Keeping(Block):
    def forward(self, value, state=None):
        return super().forward(value), State()


def test_results_that_are_no_tensors():
    refused_in_step(make_relay(with_layers(Keeping(12), Keeping(12))),
                    r"blocks.0 \(Keeping\) returned a .*State")


def test_arguments_that_may_hold_state():
    model = with_layers(Keeping(12), Keeping(12))
    refused_in_step(make_relay(model), "blocks.0 .* is given a .*State",
                    lambda part: model.blocks[0](model.embedding(part), State())[0].sum())


class Reading(Block):
    def forward(self, value):
        return super().forward(value) + self.memory[0]


def test_tensors_of_the_graph_that_are_no_arguments():
    def compute(part):
        value = model.embedding(part)
        for block in model.blocks:
            block.memory = [value.exp()]
        return model.blocks[1](model.blocks[0](value)).sum()
    model = with_layers(Reading(12), Reading(12))
    refused_in_step(make_relay(model), r"uses the result of ExpBackward0 from outside", compute)


class Sometimes(Block):
    """Its result depends on its values."""

    def forward(self, value):
        result = super().forward(value)
        return (result, result.sum()) if self.more else (result, value.detach().sum())


def test_results_that_are_others_for_the_same_arguments():
    def compute(part):
        value, total = model.embedding(part), 0.0
        for block in model.blocks:
            value, extra = block(value)
            total = total + extra
        return value.sum() + total
    model = with_layers(Sometimes(12), Sometimes(12))
    Sometimes.more = False
    relay = make_relay(model)
    for parts in word_parts(2, 2):
        quietly(relay.step, compute, parts)
    Sometimes.more = True
    refused_in_step(relay, "blocks.0 .* returned other tensors that need gradients", compute)


def test_what_is_no_layer():
    with pytest.raises(Refused, match="name them with layers"):
        make_relay(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="is no module of the model"):
        make_relay(Words(), layers=[Block(12)])
    with pytest.raises(ValueError, match="the model has no module 'blocks.7'"):
        make_relay(Words(), layers=["blocks.7"])
    with pytest.raises(Refused, match="blocks.0.inner is a part of blocks.0"):
        make_relay(Words(), layers=["blocks.0", "blocks.0.inner"])
    relay = make_relay()
    with pytest.raises(Refused, match="called none of the layers"):
        relay.step(lambda part: relay.model.embedding(part).sum(), word_parts(2, 1)[0])


@pytest.mark.parametrize("options", [
    {"micro_batches": 0}, {"micro_batches": True}, {"keep": 4}, {"keep": -1}, {"keep": "all"},
    {"clip": 0.0}, {"clip": 1.0, "split": True}, {"eager": "yes"}, {"clip": 1.0, "eager": True},
    {"scaler": object(), "split": True}], ids="-".join)
def test_options_that_make_no_sense(options):
    with pytest.raises(ValueError, match="firn.relay: "):
        make_relay(**options)


def test_parts():
    relay = make_relay()
    for parts in ([], word_parts(3, 1)[0]):
        with pytest.raises(ValueError, match="micro_batches=2"):
            relay.step(lambda part: loss_of(relay.model, part), parts)
    with pytest.raises(TypeError, match="returned a float, and not the loss"):
        relay.step(lambda part: 1.0, word_parts(2, 1)[0])


def test_optimizers():
    with pytest.raises(Refused, match="LBFGS steps with a closure"):
        make_relay(optimizer=torch.optim.LBFGS)
    with pytest.raises(TypeError, match="no torch.optim.Optimizer"):
        firn.relay(Words(), object(), 2)


class CountingSgd(torch.optim.SGD):
    """Its steps depend on how many there were, in all of a group."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            group["lr"] = 0.1 / group["count"]
        return super().step(closure)


class NormedSgd(torch.optim.SGD):
    """Its steps depend on all gradients."""

    def step(self, closure=None):
        every = [each for group in self.param_groups for each in group["params"]]
        nn.utils.clip_grad_norm_(every, 0.01)
        return super().step(closure)


@pytest.mark.parametrize("kind, why", [
    (CountingSgd, r"its value .* changes with each step"),
    (NormedSgd, "a layer's step alone has other results")])
def test_optimizers_that_see_more_than_one_parameter_step_once(kind, why):
    relay = make_relay(optimizer=kind)
    with pytest.warns(RuntimeWarning, match=f"{kind.__name__} steps once for all layers.*{why}"):
        relay.step(lambda part: loss_of(relay.model, part), word_parts(2, 1)[0])
    check_same_bits(Words, word_parts(2, 4), optimizer=kind)


def test_hooks_of_an_optimizer_see_whole_steps():
    relay = make_relay()
    seen = []
    relay.optimizer.register_step_post_hook(lambda *_: seen.append(1))
    with pytest.warns(RuntimeWarning, match="it has hooks"):
        for parts in word_parts(2, 3):
            relay.step(lambda part: loss_of(relay.model, part), parts)
    assert seen == [1, 1, 1]


def test_one_relay_at_a_time():
    relay = make_relay()
    with pytest.raises(Refused, match="is in another relay"):
        firn.relay(relay.model, relay.optimizer, 2)
    relay.close()
    with pytest.raises(RuntimeError, match="after close"):
        relay.step(lambda part: loss_of(relay.model, part), word_parts(2, 1)[0])


@pytest.mark.parametrize("kind", ["DistributedDataParallel", "DataParallel"])
def test_wrappers(kind):
    model = Words()
    model.inner = type(kind, (nn.Module,), {})()
    with pytest.raises(Refused, match=kind):
        make_relay(model)


def test_double_backward():
    def compute(part):
        value = model.embedding(part)
        for block in model.blocks:
            value = block(value)
        (slope,) = torch.autograd.grad(value.sum(), model.embedding.weight, create_graph=True)
        return slope.square().sum()
    relay = make_relay(before=1)
    model = relay.model
    refused_in_step(relay, r"torch.autograd.grad\(\) and backward\(inputs", compute)


def test_a_second_backward_pass():
    def compute(part):
        loss = loss_of(relay.model, part)
        loss.backward(retain_graph=True)
        return loss
    relay = make_relay(before=1, eager=False)
    refused_in_step(relay, "a second backward pass through layer blocks.2", compute)


def test_inputs_changed_between_forward_and_backward():
    def compute(part):
        value = model.blocks[0](model.embedding(part))
        result = model.blocks[1](value)
        with torch.no_grad():
            value.add_(1)
        return model.blocks[2](result).sum()
    relay = make_relay(before=1, eager=False)
    model = relay.model
    refused_in_step(relay, r"an input of layer blocks.1 \(Block\) was changed in place", compute)


def test_parameters_changed_between_forward_and_backward():
    def compute(part):
        loss = loss_of(relay.model, part)
        with torch.no_grad():
            relay.model.blocks[1].inner.weight.add_(0)
        return loss
    relay = make_relay(before=1, eager=False)
    refused_in_step(relay, "parameters of layer blocks.1 .* were changed", compute)


def test_eval_between_forward_and_backward():
    def compute(part):
        loss = loss_of(relay.model, part)
        relay.model.eval()
        return loss
    relay = make_relay(before=1)
    refused_in_step(relay, "switched between train", compute)


def test_step_within_step():
    relay = make_relay(before=1)
    parts = word_parts(2, 1)[0]
    with pytest.raises(RuntimeError, match="within step"):
        relay.step(lambda part: relay.step(lambda each: loss_of(relay.model, each), parts), parts)
    assert not relay_threads()
