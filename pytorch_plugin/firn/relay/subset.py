"""A step of an optimizer for some of its parameters."""

from __future__ import annotations

from typing import Collection

import torch


def step_of(optimizer: torch.optim.Optimizer, wanted: Collection[torch.Tensor]) -> None:
    """One step() with the groups cut down to the parameters that are in `wanted`; none where no
    group has one. The groups are as before, also after an exception."""
    groups = optimizer.param_groups
    every, params = list(groups), [group["params"] for group in groups]
    try:
        for group in every:
            group["params"] = [each for each in group["params"] if each in wanted]
        groups[:] = [group for group in every if group["params"]]
        if groups:
            optimizer.step()
    finally:
        groups[:] = every
        for group, before in zip(every, params):
            group["params"] = before
