"""Exceptions in mid-step of firn.relay: the caller gets each once, and no thread is left."""

import collections
import os
import signal
import threading
import time

import pytest
import torch
from torch import nn

from relay_models import Block, loss_of, word_parts
from test_relay_refused import Refused, make_relay, relay_threads, values, with_layers


class Oops(Exception):
    pass


class Failing:
    """Raises at the nth call, of any micro-batch or of one."""

    def __init__(self, after, error):
        self.left, self.error = after, error

    def __call__(self, *_):
        self.left -= 1
        if self.left < 0:
            raise self.error


PLACES = ("forward", "hook", "backward", "parameter hook")


@pytest.mark.parametrize("error", [Oops("words"), SystemExit(3), KeyboardInterrupt()],
                         ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("eager", [False, True])
def test_an_exception_reaches_the_caller_once(place, error, eager):
    relay = make_relay(with_layers(*(Block(12) for _ in range(3))), micro_batches=3, before=2,
                       eager=eager)
    model = relay.model
    # Behind the update of the last layer, where it is in the backward pass.
    failing = Failing(6 if place == "backward" else 4, error)
    before = values(model)
    handles = []

    def compute(part):
        value = model.embedding(part)
        for block in model.blocks:
            value = block(value)
            if place == "backward":
                value.register_hook(failing)
            if place == "forward":
                failing()
        return value.square().mean()
    if place == "hook":
        handles = [block.register_forward_hook(failing) for block in model.blocks]
    if place == "parameter hook":
        handles = [block.inner.weight.register_hook(failing) for block in model.blocks]
    parts = word_parts(3, 1, seed=7)[0]
    with pytest.raises(type(error)) as raised:
        relay.step(compute, parts)
    assert raised.value is error
    assert not relay_threads()
    assert all(each.grad is None for each in model.parameters())
    updated = [name for name, value, old in
               zip(dict(model.named_parameters()), model.parameters(), before)
               if not torch.equal(value, old)]
    note = " ".join(getattr(error, "__notes__", []))
    if eager and place in ("backward", "parameter hook"):
        assert updated and all(name.startswith("blocks.2.") for name in updated)
        assert "blocks.2 (Block)" in note and "updated already" in note
    else:
        assert updated == [] and note == ""
    for each in handles:
        each.remove()
    error.__notes__ = []
    failing.left = 1000
    relay.step(compute, parts)  # and it goes on
    assert not relay_threads()


def test_after_a_failed_step_bits_are_the_loops():
    """(With everything updated at the end: a failed step is none.)"""
    def run(fail):
        relay = make_relay(before=2, eager=False, micro_batches=3)
        first, second = word_parts(3, 2, seed=9)
        if fail:
            failing = Failing(4, Oops())  # in a layer's second run
            handle = relay.model.blocks[1].outer.register_forward_hook(failing)
            with pytest.raises(Oops):
                relay.step(lambda part: loss_of(relay.model, part), first)
            handle.remove()
        relay.step(lambda part: loss_of(relay.model, part), second)
        return values(relay.model)
    assert all(map(torch.equal, run(True), run(False)))


def test_an_interrupt_of_the_caller():
    """Ctrl-C, while micro-batch 1 is under way: threads end at their next layer."""
    relay = make_relay(before=1, micro_batches=3)
    calls = []

    def compute(part):
        calls.append(threading.current_thread().name)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
            end = time.monotonic() + 60
            while relay_stops() is None and time.monotonic() < end:
                pass  # (the caller has to see it)
        return loss_of(relay.model, part)

    def relay_stops():
        return next((turn._baton._error for turn in relay._turns), None)
    with pytest.raises(KeyboardInterrupt):
        relay.step(compute, word_parts(3, 1)[0])
    assert calls == ["relay 0", "relay 1"]
    assert not relay_threads()
    assert all(each.grad is None for each in relay.model.parameters())


def test_programs_that_catch_everything():
    """One that catches Exception does not hide from the others that one failed."""
    relay = make_relay(before=1, micro_batches=3)
    caught = collections.Counter()

    def compute(part):
        if threading.current_thread().name == "relay 2":
            raise Oops
        try:
            return loss_of(relay.model, part)
        except Exception:
            caught["exceptions"] += 1
            raise
    with pytest.raises(Oops):
        relay.step(compute, word_parts(3, 1)[0])
    assert caught == {} and not relay_threads()


def test_a_layer_that_runs_again_after_its_update():
    """A hook in the backward pass that runs the model."""
    relay = make_relay(before=2)
    model = relay.model

    def compute(part):
        value = model.embedding(part)
        value.register_hook(lambda _: loss_of(model, part) * 0)
        for block in model.blocks:
            value = block(value)
        return value.square().mean()
    with torch.enable_grad(), pytest.raises(Refused, match="runs again after its update"):
        relay.step(compute, word_parts(2, 1)[0])
    assert not relay_threads()
