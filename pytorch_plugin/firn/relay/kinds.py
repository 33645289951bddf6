"""The kinds of an optimizer's states: which are tensors, and which are numbers of Python's.

Optimizers that compute the same may keep them in different ways, and take no other: torch's AdamW
counts steps in a tensor, DeepSpeed's for the CPU in an int. So states that go from one class to
another are made what that class makes itself, as a step of it shows, which is put back.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

import torch
from torch import nn

from firn.relay.proof import Proof, why_no_trial
from firn.relay.subset import step_of
from firn.relay.trees import Refused

Kinds = Mapping[str, Any]  # a value of each name, as the class makes it


def kinds_of(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in states:
        found = {**each, **found}
    return found


def tried(optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> Kinds | None:
    """Of the states that a step with gradients of zero makes of `parameters`. All is as before
    then, and they have no gradients. None, where that cannot be tried."""
    if why_no_trial(optimizer) is not None:
        return None
    for each in parameters:
        each.grad = torch.zeros_like(each)
    try:
        made = Proof(optimizer, parameters, lambda wanted: step_of(optimizer, wanted)).states()
    finally:
        for each in parameters:
            each.grad = None
    return None if made is None else kinds_of(made)


def samples(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """The smallest one of each number of dimensions, for which a class may keep other states."""
    found: dict[int, nn.Parameter] = {}
    for each in parameters:
        if each.requires_grad and \
                (each.dim() not in found or each.numel() < found[each.dim()].numel()):
            found[each.dim()] = each
    return list(found.values())


def cast(states: Mapping[str, Any], kinds: Kinds | None) -> dict[str, Any]:
    """`states`, of these kinds."""
    return {name: _cast(value, (kinds or {}).get(name)) for name, value in states.items()}


def _cast(value: Any, like: Any) -> Any:
    if isinstance(like, torch.Tensor) and _is_number(value) and like.dim() == 0:
        return torch.tensor(value, dtype=like.dtype)
    if _is_number(like) and isinstance(value, torch.Tensor) and value.numel() == 1:
        return type(like)(value.item())
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check(host: Kinds | None, user: Kinds | None, name: str) -> None:
    """Refused is a host optimizer whose states could not be those of the user's class `name`."""
    if host is None or user is None:
        return
    for key, mine in user.items():
        if mine is not None and (key not in host or _form(_cast(host[key], mine)) != _form(mine)):
            there = f"as a {_form(host[key])}" if key in host else "not at all"
            raise Refused(f"firn.relay: host_optimizer= keeps the state {key!r} {there}, of which "
                          f"{name} makes a {_form(mine)}: close() could not give it back; choose "
                          "one that keeps what it keeps, or where='device'")


def _form(value: Any) -> str:
    return "tensor" if isinstance(value, torch.Tensor) else type(value).__name__
