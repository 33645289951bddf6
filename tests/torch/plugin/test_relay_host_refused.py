"""Updates that the host cannot make are refused by name, and where="auto" chooses by arithmetic."""

import threading

import pytest
import torch
from torch import nn

from relay_models import Words, firn, loss_of, quietly, word_parts
from test_relay_optimizers import WHY

Refused = firn.relay.Refused


def at_host(optimizer, model, **options):
    return firn.relay(model, optimizer, 2, where="host", **options)


@pytest.mark.parametrize("make, words", [
    (lambda each: torch.optim.AdamW(each, differentiable=True), "AdamW with differentiable=True"),
    (lambda each: torch.optim.LBFGS(each), "LBFGS steps with a closure")], ids=["adamw", "lbfgs"])
def test_optimizers(make, words):
    model = Words()
    with pytest.raises(Refused, match=words):
        at_host(make(model.parameters()), model)
    assert firn.relay.of(model) is None


def test_capturable():
    model = Words()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.param_groups[0]["capturable"] = True
    with pytest.raises(Refused, match="AdamW with capturable=True cannot step at the host"):
        at_host(optimizer, model)
    assert len(optimizer._optimizer_step_pre_hooks) == 0 and firn.relay.of(model) is None


def test_complex_parameters_and_several_devices():
    model = Words()
    model.wave = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    with pytest.raises(Refused, match=r"a parameter of torch.complex64 \(shape \(3,\)\)"):
        at_host(torch.optim.SGD(model.parameters()), model)
    model = Words()
    model.far = nn.Parameter(torch.zeros(3, device="meta"))
    with pytest.raises(Refused, match=r"parameters on \['cpu', 'meta'\]"):
        at_host(torch.optim.SGD(model.parameters()), model)


def test_what_has_no_copy():
    model = Words()
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.lock = threading.Lock()
    with pytest.raises(Refused, match="SGD holds 'lock', of which the host cannot have a copy"):
        at_host(optimizer, model)


def test_states_of_no_parameter():
    model = Words()
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.state["all"] = {"steps": 3}
    with pytest.raises(Refused, match="SGD has 'all', which is no parameter's"):
        at_host(optimizer, model)


@pytest.mark.parametrize("eager", ["auto", False])
@pytest.mark.parametrize("kind", WHY)
def test_states_that_are_not_told_by_parameter(kind, eager):
    """In the first step, before anything is changed."""
    torch.manual_seed(0)
    model = Words()
    relay = at_host(kind(model.parameters(), lr=0.1), model, eager=eager)
    before = [each.detach().clone() for each in model.parameters()]
    words = f"firn.relay: {kind.__name__} cannot step at the host: .*{WHY[kind]}"
    with pytest.raises(Refused, match=words):
        relay.step(lambda part: loss_of(model, part), word_parts(2, 1)[0])
    assert all(map(torch.equal, before, model.parameters()))
    relay.close()


def test_sparse_gradients():
    torch.manual_seed(0)
    model = Words(tied=False)
    model.embedding.sparse = True
    relay = at_host(torch.optim.SGD(model.parameters()), model)
    with pytest.raises(Refused, match=r"shape \(41, 12\)\) has a sparse gradient"):
        relay.step(lambda part: loss_of(model, part), word_parts(2, 1)[0])


def test_closures_hooks_and_groups_that_come_later():
    torch.manual_seed(0)
    model = Words()
    model.more = nn.Parameter(torch.ones(3))
    layers = [each for name, each in model.named_parameters() if name != "more"]
    optimizer = torch.optim.SGD(layers, lr=0.1)
    relay = at_host(optimizer, model, eager=False)
    parts = word_parts(2, 1)[0]
    relay.step(lambda part: loss_of(model, part), parts)
    with pytest.raises(Refused, match=r"step\(closure\) with updates at the host"):
        optimizer.step(lambda: 0.0)
    handle = optimizer.register_step_pre_hook(lambda *_: None)
    with pytest.raises(Refused, match="another hook before its steps"):
        relay.step(lambda part: loss_of(model, part), parts)
    handle.remove()
    optimizer.add_param_group({"params": [model.more]})
    with pytest.raises(Refused, match="groups have other parameters than when"):
        relay.step(lambda part: loss_of(model, part), parts)
    relay.close()
    at_host(optimizer, model).step(lambda part: loss_of(model, part), parts)


class Global(torch.optim.Optimizer):
    """SGD, by the norm of all gradients: no layer can be stepped alone."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        every = [each for group in self.param_groups for each in group["params"]
                 if each.grad is not None]
        norm = sum(each.grad.square().sum() for each in every) ** 0.5 if every else 1
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    each.sub_(each.grad / norm, alpha=group["lr"])


@pytest.mark.parametrize("eager", ["auto", False])
def test_an_optimizer_that_looks_at_all_gradients_steps_once(eager, monkeypatch):
    from firn.relay import host
    trials, proof = [], host.Proof
    monkeypatch.setattr(host, "Proof", lambda *these: trials.append(1) or proof(*these))

    def run(relayed):
        torch.manual_seed(0)
        model = Words()
        optimizer = Global(model.parameters(), lr=0.1)
        relay = at_host(optimizer, model, eager=eager) if relayed else None
        for parts in word_parts(2, 3):
            if relay:
                quietly(relay.step, lambda part: loss_of(model, part), parts)
                assert not relay._update.eager and not relay._update._separable
            else:
                for part in parts:
                    loss_of(model, part).backward()
                optimizer.step()
                optimizer.zero_grad()
        return list(model.parameters())
    assert all(map(torch.equal, run(True), run(False)))
    assert len(trials) == 1


@pytest.mark.parametrize("options, words", [
    ({"where": "gpu"}, "where='gpu'"), ({"where": True}, "where=True"),
    ({"host_optimizer": torch.optim.SGD}, "host_optimizer="),
    ({"host_optimizer": 3, "where": "host"}, "host_optimizer=3"),
    ({"accumulate": torch.float64}, "accumulate=torch.float64"),
    ({"accumulate": True}, "accumulate=True")], ids=str)
def test_options(options, words):
    model = Words()
    with pytest.raises(ValueError, match=f"firn.relay: {words}"):
        firn.relay(model, torch.optim.SGD(model.parameters()), 2, **options)


def test_host_optimizers_of_other_kinds():
    model = Words()
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(TypeError, match="host_optimizer= returned a int"):
        at_host(optimizer, model, host_optimizer=lambda groups: 3)
    with pytest.raises(ValueError, match="an optimizer of other groups"):
        at_host(optimizer, model, host_optimizer=lambda groups: torch.optim.SGD(groups[0]["params"]
                                                                                [:1]))
    assert firn.relay.of(model) is None and len(optimizer._optimizer_step_pre_hooks) == 0


GB = 10 ** 9


@pytest.mark.parametrize("loads, rates, expected", [
    # Nothing is beyond the budget: no copies on the device.
    ((2 * GB, 4 * GB, 2 * GB, GB, 8 * GB), (10e9, 10e9, 1e9), (0.0, 1.0)),
    # All of it is, nearly: 2 W + S in; at the host 3 W in, and W + G out.
    ((2 * GB, 8 * GB, 2 * GB, GB, 0), (10e9, 10e9, 100e9), (1.2, 0.6)),
    # The host's rate is what it takes.
    ((2 * GB, 8 * GB, 2 * GB, GB, 0), (10e9, 10e9, 0.5e9), (1.2, 2.0)),
    # A half of W + S is beyond, and nothing of W; out is the slower way.
    ((2 * GB, 8 * GB, 4 * GB, GB, 5 * GB), (10e9, 2e9, 100e9), (2.5, 2.0))], ids=str)
def test_the_arithmetic(loads, rates, expected):
    from firn.relay.place import Loads, Rates, seconds
    assert seconds(Loads(*loads), Rates(*rates)) == pytest.approx(expected)


def test_auto_is_the_device_where_firn_is_not_the_allocator(recwarn):
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.AdamW(model.parameters())
    relay = firn.relay(model, optimizer, 2, where="auto")
    assert relay.where == "auto"
    relay.step(lambda part: loss_of(model, part), word_parts(2, 1)[0])
    assert relay.where == "device" and len(optimizer.state) == len(list(model.parameters()))
    assert not [each for each in recwarn if "where=" in str(each.message)]
    relay.close()


def test_auto_is_the_device_where_the_host_cannot():
    model = Words()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.param_groups[0]["capturable"] = True
    with pytest.warns(RuntimeWarning, match=r"where='auto': updates on the device \(AdamW with "
                                            "capturable=True"):
        relay = firn.relay(model, optimizer, 2, where="auto")
    assert relay.where == "device"


def test_auto_leaves_a_scale_in_the_optimizer_to_it():
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    relay = firn.relay(model, optimizer, 2, where="auto",
                       scaler=torch.amp.GradScaler("cpu", init_scale=4.0))
    with pytest.warns(RuntimeWarning, match="where='auto': updates on the device: a scaler"):
        relay.step(lambda part: loss_of(model, part), word_parts(2, 1)[0])
    assert relay.where == "device"
