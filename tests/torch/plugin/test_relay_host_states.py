"""The states of updates at the host: where they are, checkpoints, and parameters that the program
writes."""

import copy
import threading

import pytest
import torch

from relay_models import Words, firn, loss_of, same, word_parts
from test_relay_host import grouped


def test_the_device_has_no_states_while_it_is_open():
    threads = set(threading.enumerate())
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        loss_of(model, word_parts(1, 1)[0][0]).backward()
        optimizer.step()
        optimizer.zero_grad()
    before = copy.deepcopy(optimizer.state_dict())
    relay = firn.relay(model, optimizer, 2, where="host")
    assert not any(optimizer.state.values()) and relay.where == "host"
    assert repr(relay).endswith("AdamW layer by layer, at the host")
    check_states(optimizer.state_dict()["state"], before["state"])
    for parts in word_parts(2, 3):
        relay.step(lambda part: loss_of(model, part), parts)
        assert not any(optimizer.state.values())
    now = copy.deepcopy(optimizer.state_dict()["state"])
    relay.close()
    relay.close()
    assert relay.where == "host"
    check_states(optimizer.state_dict()["state"], now)
    assert len(optimizer.state) == len(list(model.parameters()))
    assert float(now[0]["step"]) == 5
    assert set(threading.enumerate()) <= threads


def check_states(one, other):
    assert one.keys() == other.keys()
    for number in one:
        assert one[number].keys() == other[number].keys()
        for key in one[number]:
            assert same(one[number][key], other[number][key]), (number, key)


@pytest.mark.parametrize("relayed", [(True, False), (False, True), (True, True)], ids=str)
def test_checkpoints(relayed):
    """A run of which each half begins from a checkpoint, is the run in one piece."""
    whole = grouped(False, steps=4)
    torch.manual_seed(0)
    saved, model = None, Words()
    for half, in_relay in enumerate(relayed):
        if half:
            torch.manual_seed(5)
            other = Words()
            other.load_state_dict(copy.deepcopy(model.state_dict()))
            model = other
        small = [each for each in model.parameters() if each.dim() < 2]
        large = [each for each in model.parameters() if each.dim() > 1]
        optimizer = torch.optim.AdamW([{"params": small, "weight_decay": 0.0},
                                       {"params": large, "lr": 3e-3}], lr=1e-2, fused=True)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
        relay = firn.relay(model, optimizer, 2, where="host") if in_relay else None
        if half:
            optimizer.load_state_dict(saved["optimizer"])
            scheduler.load_state_dict(saved["scheduler"])
        for parts in word_parts(2, 4)[2 * half:2 * half + 2]:
            if relay:
                relay.step(lambda part: loss_of(model, part), parts)
            else:
                for part in parts:
                    loss_of(model, part).backward()
                optimizer.step()
                optimizer.zero_grad()
            scheduler.step()
        saved = copy.deepcopy({"optimizer": optimizer.state_dict(),
                               "scheduler": scheduler.state_dict()})
    assert all(map(torch.equal, whole, (each.detach() for each in model.parameters())))


def changed_outside(relayed, change, when=2):
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    relay = firn.relay(model, optimizer, 2, where="host") if relayed else None
    for number, parts in enumerate(word_parts(2, 4)):
        if number == when:
            with torch.no_grad():
                change(model)
        if relay:
            relay.step(lambda part: loss_of(model, part), parts)
        else:
            for part in parts:
                loss_of(model, part).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert relay is None or relay._update.eager
    return [each.detach() for each in model.parameters()]


def new_memory(model):
    for each in model.parameters():
        each.data = each.data * 0.5


def weight_by_weight(model):
    model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})


@pytest.mark.parametrize("change", [
    weight_by_weight, new_memory, lambda model: model.blocks[1].outer.weight.mul_(2),
    lambda model: model.embedding.weight.zero_()], ids=["load", "data", "layer", "embedding"])
@pytest.mark.parametrize("when", [0, 2])
def test_the_program_changes_parameters(change, when):
    plain = changed_outside(False, change, when)
    assert all(map(torch.equal, changed_outside(True, change, when), plain))
    assert not all(map(torch.equal, plain, changed_outside(False, lambda model: None)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("model_first", [True, False])
def test_checkpoints_of_16_bits_have_the_masters(dtype, model_first):
    """A run that goes on from one has the bits of the run in one piece; the masters of a model that
    has other values by then do not come back."""
    steps = word_parts(2, 4)

    def begin(seed):
        torch.manual_seed(seed)
        model = Words().to(dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        return model, optimizer, firn.relay(model, optimizer, 2, where="host")

    def go(model, relay, steps):
        for parts in steps:
            relay.step(lambda part: loss_of(model, part), parts)
        return [each.detach().clone() for each in model.parameters()]
    model, optimizer, relay = begin(0)
    go(model, relay, steps[:2])
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    assert all(state["firn_master"].dtype == torch.float32 for state in saved[1]["state"].values())
    whole = go(model, relay, steps[2:])
    other, optimizer, relay = begin(3)
    loads = [lambda: other.load_state_dict(saved[0]), lambda: optimizer.load_state_dict(saved[1])]
    for load in loads if model_first else reversed(loads):
        load()
    assert all(map(torch.equal, go(other, relay, steps[2:]), whole))

    third, optimizer, relay = begin(0)
    third.load_state_dict(saved[0])
    for state in saved[1]["state"].values():
        state["firn_master"] = state["firn_master"] + 1
    optimizer.load_state_dict(saved[1])
    now = go(third, relay, steps[2:])
    plain, optimizer, relay = begin(0)
    plain.load_state_dict(saved[0])
    for state in saved[1]["state"].values():
        del state["firn_master"]
    optimizer.load_state_dict(saved[1])
    assert all(map(torch.equal, go(plain, relay, steps[2:]), now))


def clamp(model, quietly):
    """As critics are kept in bounds; one parameter of a layer alone."""
    for each in [*model.blocks[1].parameters(), model.head.weight]:
        if each.dim() < 2 or each is model.head.weight:
            if quietly:
                each.data.clamp_(-0.05, 0.05)
            else:
                with torch.no_grad():
                    each.clamp_(-0.05, 0.05)


def one_bit(model, quietly):
    value = model.blocks[2].inner.bias
    (value.data if quietly else value.detach()).view(-1)[3].mul_(2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16],
                         ids=str)
@pytest.mark.parametrize("write, width", [(clamp, 12), (one_bit, 12), (clamp, 5)])
def test_writes_that_no_version_tells_are_read(dtype, write, width):
    """In place through .data, between steps."""
    def run(quietly, writes=True):
        torch.manual_seed(0)
        model = Words(width=width, tied=False).to(dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        relay = firn.relay(model, optimizer, 2, where="host")
        for parts in word_parts(2, 4):
            if writes:
                write(model, quietly)
            relay.step(lambda part: loss_of(model, part), parts)
        relay.close()
        return [each.detach() for each in model.parameters()]
    expected = run(False)
    assert all(map(torch.equal, run(True), expected))
    assert not all(map(torch.equal, run(True, writes=False), expected))
