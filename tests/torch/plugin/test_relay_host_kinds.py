"""host_optimizer= of a class that keeps its states in another way than the program's: each gets
what it makes itself, in checkpoints too, or is refused before anything has changed."""

import copy

import pytest
import torch
from torch.optim.adam import adam

from relay_models import Words, firn, loss_of, same, word_parts


class InNumbers(torch.optim.Optimizer):
    """AdamW as DeepSpeed's for the CPU keeps it: steps are an int, and a tensor is an error."""

    def __init__(self, groups):
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(each),
                                 exp_avg_sq=torch.zeros_like(each))
                if type(state["step"]) is not int:
                    raise TypeError(f"step is a {type(state['step']).__name__}")
                beta1, beta2 = group["betas"]
                adam([each], [each.grad], [state["exp_avg"]], [state["exp_avg_sq"]], [],
                     [torch.tensor(float(state["step"]))], fused=True, amsgrad=False, beta1=beta1,
                     beta2=beta2, lr=group["lr"], weight_decay=group["weight_decay"],
                     eps=group["eps"], maximize=False, decoupled_weight_decay=True)
                state["step"] += 1


def begin(seed=0, dtype=torch.float32, **options):
    torch.manual_seed(seed)
    model = Words().to(dtype)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, **{"fused": True, **options})


def plain(model, optimizer, steps):
    for parts in steps:
        for part in parts:
            loss_of(model, part).backward()
        optimizer.step()
        optimizer.zero_grad()


def relayed(model, relay, steps):
    for parts in steps:
        relay.step(lambda part: loss_of(model, part), parts)


def values(model, optimizer):
    return [*(each.detach() for each in model.parameters()),
            *(value for each in model.parameters() for value in optimizer.state[each].values())]


STEPS = word_parts(2, 6)


@pytest.mark.parametrize("before", [0, 2])
def test_states_go_from_one_to_the_other_and_back(before):
    """Plain steps, steps of the relay, plain steps: the plain run's bits and states."""
    expected = begin()
    plain(*expected, STEPS)
    model, optimizer = begin()
    plain(model, optimizer, STEPS[:before])
    relay = firn.relay(model, optimizer, 2, where="host", host_optimizer=InNumbers)
    relayed(model, relay, STEPS[before:4])
    saved = copy.deepcopy(optimizer.state_dict())
    assert type(relay._update._twin.optimizer.state_dict()["state"][0]["step"]) is int
    assert type(saved["state"][0]["step"]) is torch.Tensor
    assert saved["state"][0]["step"].dtype == torch.float32
    relay.close()
    plain(model, optimizer, STEPS[4:])
    assert all(map(same, values(model, optimizer), values(*expected)))


@pytest.mark.parametrize("of_the_relay", [True, False])
def test_a_checkpoint_is_what_each_makes(of_the_relay):
    """Of either run, in the relay."""
    expected = begin()
    plain(*expected, STEPS)
    model, optimizer = begin()
    if of_the_relay:
        relay = firn.relay(model, optimizer, 2, where="host", host_optimizer=InNumbers)
        relayed(model, relay, STEPS[:3])
    else:
        plain(model, optimizer, STEPS[:3])
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    model, optimizer = begin(3)
    relay = firn.relay(model, optimizer, 2, where="host", host_optimizer=InNumbers)
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    relayed(model, relay, STEPS[3:])
    relay.close()
    assert all(map(same, values(model, optimizer), values(*expected)))


class Forgets(InNumbers):
    """Its first moment is a number."""

    def step(self, closure=None):
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    self.state[each].update(step=1, exp_avg=2.0, exp_avg_sq=each.grad.square())


@pytest.mark.parametrize("kind, options, before, words", [
    (InNumbers, {"amsgrad": True}, 0, "keeps the state 'max_exp_avg_sq' not at all, of which "
                                      "AdamW makes a tensor"),
    (InNumbers, {"amsgrad": True}, 1, "keeps the state 'max_exp_avg_sq' not at all"),
    (Forgets, {}, 0, "keeps the state 'exp_avg' as a float, of which AdamW makes a tensor")])
def test_states_that_could_not_be_given_back_are_refused(kind, options, before, words):
    model, optimizer = begin(**options)
    plain(model, optimizer, STEPS[:before])
    now = copy.deepcopy((values(model, optimizer), optimizer.state_dict()["state"]))
    with pytest.raises(firn.relay.Refused, match=words):
        firn.relay(model, optimizer, 2, where="host", host_optimizer=kind)
    assert all(map(same, values(model, optimizer), now[0]))
    assert optimizer.state_dict()["state"].keys() == now[1].keys()
    assert firn.relay.of(model) is None and not optimizer._optimizer_step_pre_hooks
    assert all(each.grad is None for each in model.parameters())


def test_the_trial_leaves_no_trace():
    """Masters, states and what the optimizers hold are as if there had been none."""
    model, optimizer = begin()
    relay = firn.relay(model, optimizer, 2, where="host", host_optimizer=InNumbers)
    twin = relay._update._twin
    assert not twin.optimizer.state
    for each in model.parameters():
        assert torch.equal(twin.of(each), each) and twin.of(each).grad is None
    relay.close()
    assert not optimizer.state
