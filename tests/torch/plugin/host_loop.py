"""For the tests of firn.relay's updates at the host: the accumulation loop with masters by hand."""

import torch
from torch import nn

WIDE = {torch.float64: torch.float64}


class MasterLoop:
    """The plain loop whose optimizer, of CPU tensors, has masters of 32 bits (64 of 64), of which
    the model's parameters are casts. `sum_in`: the gradients of the model's `wide` parameters are
    summed in that type over the parts, and rounded once."""

    def __init__(self, model, groups, kind, sum_in=None, wide=(), **options):
        self.model, self.clip = model, None
        self.sum_in, self.wide = sum_in, set(wide)
        self.masters = {each: nn.Parameter(each.detach().to(WIDE.get(each.dtype, torch.float32),
                                                            copy=True))
                        for group in groups for each in group["params"]}
        self.optimizer = kind([{**group, "params": [self.masters[each] for each in
                                                    group["params"]]} for group in groups],
                              **options)

    def step(self, compute, parts):
        total, sums = None, {}
        for part in parts:
            loss = compute(part)
            loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
            for each in self.wide if self.sum_in else ():
                if each.grad is not None:
                    now = each.grad.to(self.sum_in)
                    sums[each] = sums[each] + now if each in sums else now
                    each.grad = None
        for each, value in sums.items():
            each.grad = value.to(each.dtype)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        for each, master in self.masters.items():
            master.grad = None if each.grad is None else each.grad.to(master.dtype)
            each.grad = None
        self.optimizer.step()
        with torch.no_grad():
            for each, master in self.masters.items():
                each.copy_(master)
        return total

    def states(self):
        return self.optimizer.state_dict()["state"]
