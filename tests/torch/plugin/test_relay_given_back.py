"""firn.relay() leaves the model as it was where it fails, and close() gives it back; it warns of
attributes that micro-batches would take from each other."""

import types
import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from relay_models import Block, Words, check_same_bits, firn, loss_of, quietly, word_parts

Refused = firn.relay.Refused


def with_config():
    torch.manual_seed(0)
    model = Words()
    model.config = types.SimpleNamespace(use_cache=True)
    return model


class Checkpointed(Words):
    gradient_checkpointing = True

    def gradient_checkpointing_disable(self):
        self.gradient_checkpointing = False


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_close_gives_settings_back():
    model = Checkpointed()
    model.config = types.SimpleNamespace(use_cache=True)
    relay = quietly(firn.relay, model, sgd(model), 2)
    assert not model.config.use_cache and not model.gradient_checkpointing
    relay.close()
    assert model.config.use_cache and model.gradient_checkpointing
    model.config.use_cache = False
    relay.close()
    assert not model.config.use_cache, "the second close() changes nothing"


class Wrapping(torch.optim.Optimizer):
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self, closure=None):
        self.optimizer.step()


def test_errors_leave_the_model_as_it_was():
    model = with_config()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="use_cache"):
            firn.relay(model, sgd(model), 2)
    assert model.config.use_cache and firn.relay.of(model) is None
    with pytest.raises(Refused, match="Wrapping has not called torch.optim.Optimizer.__init__"):
        firn.relay(model, Wrapping(sgd(model)), 2)
    with pytest.raises(ValueError, match=r"layers='blocks': a list .*\['blocks'\]"):
        firn.relay(model, sgd(model), 2, layers="blocks")
    assert model.config.use_cache and firn.relay.of(model) is None


class Masked(Block):
    def forward(self, value):
        return super().forward(value) * self.mask


def test_attributes_that_each_micro_batch_sets_are_named():
    def compute(part):
        for block in model.blocks:
            block.mask = (part[:, :-1, None] > 20).float()
        model.first = model.first or [1]
        return loss_of(model, part)
    model = Words(block=Masked)
    model.first = None
    relay = firn.relay(model, sgd(model), 3)
    with pytest.warns(RuntimeWarning, match="each call of compute changes 'mask' of blocks.0, "
                      "'mask' of blocks.1, 'mask' of blocks.2: micro-batches take turns"):
        relay.step(compute, word_parts(3, 1)[0])


class Views(Block):
    def forward(self, value):
        value = super().forward(value)
        return value, value[:, 0]


def test_results_that_share_memory():
    def read(model, part):
        value, total = model.embedding(part), 0.0
        for block in model.blocks:
            value, first = block(value)
            total = total + first.square().mean()
        return value.square().mean() + total

    def write(model, part):
        value, total = model.embedding(part), 0.0
        for block in model.blocks:
            value, first = block(value)
            value.mul_(2)
            total = total + first.sum()
        return value.square().mean() + total
    relay = check_same_bits(lambda: Words(block=Views), word_parts(2, 3), compute=read)
    model = relay.model
    again = quietly(firn.relay, model, sgd(model), 2)
    first, second = word_parts(2, 2)
    again.step(lambda part: write(model, part), first)
    with pytest.raises(Refused, match="blocks.2 .* returned tensors that share memory"):
        again.step(lambda part: write(model, part), second)


class Reentrant(Block):
    def forward(self, value):
        return checkpoint(super().forward, value, use_reentrant=True)


def test_reentrant_checkpoints_with_shared_parameters():
    def make(tied):
        model = Words(block=Reentrant)
        if tied:
            for block in model.blocks:
                block.inner.weight = model.blocks[0].inner.weight
        return model
    check_same_bits(lambda: make(False), word_parts(2, 3))
    model = make(True)
    relay = firn.relay(model, sgd(model), 2)
    with pytest.raises(Refused, match=r"blocks.0 .* uses checkpoint\(use_reentrant=True\), and"):
        relay.step(lambda part: loss_of(model, part), word_parts(2, 1)[0])


def test_a_backward_pass_in_compute():
    def compute(part):
        loss_of(model, part.flip(0)).backward()
        return loss_of(model, part)
    torch.manual_seed(0)
    model = Words()
    relay = firn.relay(model, sgd(model), 2)
    first, second = word_parts(2, 2)
    relay.step(lambda part: loss_of(model, part), first)
    with pytest.raises(Refused, match="compute begins a backward pass"):
        relay.step(compute, second)


class Side(Block):
    def forward(self, value):
        self.aux = self.inner(value)
        return super().forward(value)


def test_kept_layers_may_keep_tensors():
    """Their graph stays, and one micro-batch runs through all of them: what lies beside their
    results is in the loss as always."""
    def compute(model, part):
        loss = loss_of(model, part)
        return loss + sum(block.aux.square().mean() for block in model.blocks[1:])
    check_same_bits(lambda: Words(block=Side), word_parts(2, 3), compute=compute,
                    options={"keep": 2})
