"""Updates at the host beside what else a program does with its optimizer: hooks of all optimizers,
torch's distributed checkpoints, memory that takes another's place, looks at gradients."""

import collections
import copy
import io
import pickle
import threading

import pytest
import torch
from torch.optim import optimizer as torch_optimizer

from relay_models import Words, firn, loss_of, quietly, word_parts


def made(where="host", kind=torch.optim.AdamW, dtype=torch.float32, **options):
    torch.manual_seed(0)
    model = Words().to(dtype)
    of_optimizer = options.pop("of_optimizer", {"lr": 1e-2})
    optimizer = kind(model.parameters(), **of_optimizer)
    return model, optimizer, quietly(firn.relay, model, optimizer, 2, where=where, **options)


def steps(model, relay, count, seed=1):
    for parts in word_parts(2, count, seed=seed):
        quietly(relay.step, lambda part: loss_of(model, part), parts)


def values(model):
    return [each.detach().clone() for each in model.parameters()]


def equal(ones, others):
    return all(map(torch.equal, ones, others))


def test_hooks_of_all_optimizers_are_refused_before_they_see_the_host_s_steps():
    seen = []
    handle = torch_optimizer.register_optimizer_step_pre_hook(lambda *_: seen.append(1))
    try:
        with pytest.raises(firn.relay.Refused, match="hooks on the steps of all optimizers"):
            made()
    finally:
        handle.remove()
    model, optimizer, relay = made()
    before = values(model)
    handle = torch_optimizer.register_optimizer_step_pre_hook(lambda *_: seen.append(1))
    try:
        with pytest.raises(firn.relay.Refused, match="hooks on the steps of all optimizers"):
            steps(model, relay, 1)
    finally:
        handle.remove()
    assert equal(values(model), before)
    relay.close()


def test_a_distributed_checkpoint_steps_nothing():
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    def run(looks):
        model, optimizer, relay = made()
        for count in range(3):
            steps(model, relay, 1, seed=count)
            if looks:
                get_optimizer_state_dict(model, optimizer)
        relay.close()
        return values(model), optimizer.state_dict()
    (plain, states), (looked, others) = run(False), run(True)
    assert equal(plain, looked)
    assert states["state"].keys() == others["state"].keys()
    assert float(others["state"][0]["step"]) == 3


def test_memory_in_the_place_of_another_s_is_read_again():
    def run(where):
        model, _, relay = made(where, of_optimizer={"lr": 1e-2, "fused": True})
        for count in range(4):
            steps(model, relay, 1, seed=count)
            for each in model.parameters():
                each.data = each.data * .9
                each.data = each.data.clamp(-.1, .1)
        steps(model, relay, 1)
        relay.close()
        return values(model)
    assert equal(run("host"), run("device"))


@pytest.mark.parametrize("momentum", [0., .9])
def test_masters_are_saved_without_states_too(momentum):
    of_optimizer = {"lr": 1e-3, "momentum": momentum}
    model, optimizer, relay = made(kind=torch.optim.SGD, dtype=torch.bfloat16,
                                   of_optimizer=of_optimizer)
    steps(model, relay, 2)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    assert all("firn_master" in each for each in saved[1]["state"].values())
    assert len(saved[1]["state"]) == len(list(model.parameters()))
    steps(model, relay, 2, seed=2)
    relay.close()
    other, optimizer, relay = made(kind=torch.optim.SGD, dtype=torch.bfloat16,
                                   of_optimizer=of_optimizer)
    other.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    steps(other, relay, 2, seed=2)
    relay.close()
    assert equal(values(model), values(other))
    optimizer.load_state_dict(saved[1])  # and then a relay: torch has rounded the masters
    with pytest.warns(RuntimeWarning, match="load it after firn.relay"):
        firn.relay(other, optimizer, 2, where="host").close()


@pytest.mark.parametrize("where", ["device", "host"])
def test_gradients_are_there_behind_the_split_form_s_step(where):
    model, optimizer, relay = made(where, split=True)
    for parts in word_parts(2, 3):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, torch.cat(parts)).backward()
        before = [each.grad.clone() for each in model.parameters()]
        quietly(optimizer.step)
        assert equal([each.grad for each in model.parameters()], before)
    firn.relay.of(model).close()


def test_the_host_s_optimizer_keeps_its_own_ways_over_a_checkpoint():
    class Boosted(torch.optim.SGD):
        def __init__(self, groups, boost):
            super().__init__(groups, lr=1e-2)
            for group in self.param_groups:
                group["boost"] = boost

        def step(self, closure=None):
            seen.extend(group["boost"] for group in self.param_groups)
            return super().step(closure)
    seen = []
    model, optimizer, relay = made(kind=torch.optim.SGD, of_optimizer={"lr": 1e-2},
                                   host_optimizer=lambda groups: Boosted(groups, 3))
    steps(model, relay, 2)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps(model, relay, 2)
    assert set(seen) == {3}
    relay.close()


def test_a_group_that_was_removed_leaves_the_others_their_states():
    before = threading.active_count()
    torch.manual_seed(0)
    model = Words(tied=False)
    optimizer = torch.optim.AdamW([{"params": model.embedding.parameters()},
                                   {"params": model.blocks.parameters()},
                                   {"params": model.head.parameters()}], lr=1e-2)
    relay = quietly(firn.relay, model, optimizer, 2, where="host")
    steps(model, relay, 2)
    del optimizer.param_groups[0]
    with pytest.raises(firn.relay.Refused, match="close\\(\\) the relay and make a new one"):
        steps(model, relay, 1)
    relay.close()
    assert threading.active_count() == before
    assert all("exp_avg" in optimizer.state[each] for each in model.blocks.parameters())


def by_pickle(both):
    return pickle.loads(pickle.dumps(both))


def by_file(both):
    file = io.BytesIO()
    torch.save(both, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, by_pickle, by_file])
def test_copies_of_the_optimizer_have_its_states(copied):
    """A copy trains on, plainly, as the optimizer does once the relay is closed."""
    def plainly(model, optimizer):
        for part in word_parts(1, 2, seed=5):
            loss_of(model, part[0]).backward()
            optimizer.step()
            optimizer.zero_grad()
        return values(model) + [each for state in optimizer.state.values()
                                for each in state.values()]
    model, optimizer, relay = made(of_optimizer={"lr": 1e-2, "fused": True})
    steps(model, relay, 3)
    other, of_other = copied((model, optimizer))
    assert not any(optimizer.state.values()) and "__getstate__" not in vars(of_other)
    steps(model, relay, 1)
    assert len(of_other.state) == len(values(model)) and float(of_other.state[
        of_other.param_groups[0]["params"][0]]["step"]) == 3
    found = plainly(other, of_other)
    relay.close()
    assert "__getstate__" not in vars(optimizer)
    model, optimizer, relay = made(of_optimizer={"lr": 1e-2, "fused": True})
    steps(model, relay, 3)
    relay.close()
    assert len(found) == 4 * len(values(model)) and equal(found, plainly(model, optimizer))


@pytest.mark.parametrize("clear", [
    lambda optimizer: optimizer.state.clear(),
    lambda optimizer: optimizer.state.pop(optimizer.param_groups[0]["params"][3]),
    lambda optimizer: vars(optimizer).update(state=collections.defaultdict(dict))])
def test_states_that_the_program_throws_away_are_refused(clear):
    model, optimizer, relay = made(of_optimizer={"lr": 1e-2, "fused": True})
    steps(model, relay, 2)
    before = values(model)
    clear(optimizer)
    with pytest.raises(firn.relay.Refused, match="state was cleared or replaced, and its states"):
        steps(model, relay, 1, seed=3)
    assert equal(values(model), before)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})  # as the words say
    steps(model, relay, 1, seed=3)
    relay.close()
    assert all(float(state["step"]) == 1 for state in optimizer.state.values())
