"""Random optimizers at the host: the bits of the loop with masters by hand, of 64, 32 and 16 bits.

A seed draws the optimizer and its options, groups, the model's type, how the step is made, and
what is summed in 32 bits.
"""

import random

import pytest
import torch

from host_loop import MasterLoop
from relay_models import Words, loss_of, quietly, same, firn, word_parts

KINDS = [(torch.optim.AdamW, {"amsgrad": [False, True], "weight_decay": [0.0, 0.1],
                              "betas": [(0.9, 0.999), (0.5, 0.9)]}),
         (torch.optim.Adam, {"weight_decay": [0.0, 0.1], "eps": [1e-8, 1e-3]}),
         (torch.optim.SGD, {"momentum": [0.0, 0.9], "weight_decay": [0.0, 0.1],
                            "dampening": [0.0, 0.5]}),
         (torch.optim.Adagrad, {"lr_decay": [0.0, 0.1], "weight_decay": [0.0, 0.1]})]
TYPES = [torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16]


class Draw:
    def __init__(self, seed):
        draw = random.Random(seed)
        self.type = draw.choice(TYPES)
        self.kind, choices = draw.choice(KINDS)
        self.options = {"lr": draw.choice([1e-2, 3e-3]), "maximize": draw.random() < 0.2,
                        **{name: draw.choice(values) for name, values in choices.items()}}
        self.groups = draw.randint(1, 3)
        self.rate = draw.choice([1.0, 0.9])  # of the next step's lr, by this one's
        self.micro_batches, self.layers = draw.randint(1, 4), draw.randint(2, 4)
        self.tied = draw.random() < 0.5
        self.sums = draw.random() < 0.5
        self.relay = {"eager": draw.choice(["auto", False]),
                      "keep": draw.choice([0, 0, 1, self.layers]),
                      "clip": draw.choice([None, None, 0.1])}
        self.frozen = draw.random() < 0.2
        self.steps = word_parts(self.micro_batches, 4, seed=seed)

    def model(self):
        torch.manual_seed(0)
        model = Words(layers=self.layers, width=8, tied=self.tied).to(self.type)
        model.blocks[0].norm.requires_grad_(not self.frozen)
        return model

    def groups_of(self, model):
        parameters = list(model.parameters())
        return [{"params": parameters[number::self.groups], "lr": self.options["lr"] / (1 + number)}
                for number in range(self.groups)]

    def run(self, step, model, optimizer):
        losses = []
        for parts in self.steps:
            losses.append(quietly(step, lambda part: loss_of(model, part) / len(parts), parts))
            for group in optimizer.param_groups:
                group["lr"] *= self.rate
        return losses

    def in_relay(self):
        model = self.model()
        optimizer = self.kind(self.groups_of(model), **self.options)
        relay = quietly(firn.relay, model, optimizer, self.micro_batches, where="host",
                        accumulate=torch.float32 if self.sums else None,
                        **{**self.relay, "eager": False if self.relay["clip"] else
                           self.relay["eager"]})
        losses = self.run(relay.step, model, optimizer)
        states = optimizer.state_dict()["state"]
        relay.close()
        return losses, model, states, relay._update

    def by_hand(self):
        model = self.model()
        wide = [each for each in model.blocks.parameters()
                if self.type in (torch.bfloat16, torch.float16)]
        loop = MasterLoop(model, self.groups_of(model), self.kind, fused=True, wide=wide,
                          sum_in=torch.float32 if self.sums else None, **self.options)
        loop.clip = self.relay["clip"]
        losses = self.run(loop.step, model, loop.optimizer)
        return losses, model, loop.states()


def differences(seed):
    draw = Draw(seed)
    losses, model, states, _ = draw.in_relay()
    other_losses, other, other_states = draw.by_hand()
    found = [f"loss {at}" for at, pair in enumerate(zip(losses, other_losses))
             if not torch.equal(*pair)]
    found += [name for (name, one), two in zip(model.named_parameters(), other.parameters())
              if not torch.equal(one, two)]
    alone = {number for number, state in states.items() if state.keys() == {"firn_master"}}
    if states.keys() - alone != other_states.keys() - alone:
        found.append("states")
    found += [f"{key} of {number}" for number in states.keys() & other_states.keys()
              for key, value in other_states[number].items()
              if not same(states[number].get(key), value)]
    return found


@pytest.mark.parametrize("seeds", [range(15),
                                   pytest.param(range(15, 400), marks=pytest.mark.long)],
                         ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_bits_of_masters_by_hand(seeds):
    for seed in seeds:
        assert differences(seed) == [], "cd tests/torch/plugin && FIRN_TEST_BUILD=build python " \
            f"-c 'import test_relay_host_random as r; print(r.differences({seed}))'"
