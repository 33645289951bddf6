"""Is a step of one layer's parameters what the whole step makes of them?

The smallest layer is stepped alone, all is put back, and its parameters and states are compared
with what the whole step makes of them. Where they differ (norms over all gradients), where a
second such step changes the optimizer itself or a group (values that count steps), and where it
draws random numbers, the layers cannot be stepped one by one. An optimizer that a trial could not
put back is not tried.
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Sequence

import torch
from torch import nn

from firn.relay.draws import generators_of
from firn.relay.held import Held, Unknown
from firn.relay.layers import Layer
from firn.relay.sameness import equal
from firn.relay.state import Randomness

_TORCHS = {"state", "param_groups", "params", "_step_count", "_opt_called",
           "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"}


def smallest(optimizer: torch.optim.Optimizer, layers: Sequence[Layer]) -> list[nn.Parameter]:
    """The layer's parameters of fewest elements that have gradients and are the optimizer's."""
    known = {each for group in optimizer.param_groups for each in group["params"]}
    choices = [[each for each in layer.own if each in known and each.grad is not None]
               for layer in layers]
    return min((each for each in choices if each), default=[],
               key=lambda each: sum(one.numel() for one in each))


def why_no_trial(optimizer: torch.optim.Optimizer) -> str | None:
    """Why it could not be put back after one; None where it can."""
    others = _other_states(optimizer)
    if others:
        return f"its state has {others[0]!r}, which is no parameter's"
    try:
        _held(optimizer)
    except Unknown as unknown:
        return f"a trial could not put back {unknown}"
    return None


def _other_states(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [key for key in optimizer.state if not isinstance(key, torch.Tensor)]


def _holders(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [*optimizer.param_groups, vars(optimizer)]


def _held(optimizer: torch.optim.Optimizer) -> list[Held]:
    return [Held(each, _TORCHS) for each in _holders(optimizer)]


class Proof:
    """Made before the whole step, of `parameters` (smallest()), where why_no_trial() is None."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter],
                 step_of: Callable[[set[nn.Parameter]], None]) -> None:
        self._optimizer, self._parameters = optimizer, parameters
        self.why: str | None = None  # not, as the trial showed
        self._alone: list[dict[str, Any]] = []
        before = self._now(with_gradients=True)
        held = _held(optimizer)
        chance = Randomness(generators_of(parameters))
        try:
            step_of(set(parameters))
            self._alone = self._now(with_gradients=False)
            begun = _held(optimizer)  # (with what the first step alone has made)
            step_of(set(parameters))
            changed = [key for each in begun for key in each.changed()] + _other_states(optimizer)
            if changed:
                self.why = f"its value {changed[0]!r} changes with each step"
            elif chance.has_moved():
                self.why = "it draws random numbers"
        except Exception as error:
            self.why = f"a step of one layer failed ({error})"
        self._put_back(before)
        for key in _other_states(optimizer):
            del optimizer.state[key]
        for each in held:
            each.put_back()
        chance.put_back()

    def states(self) -> list[dict[str, Any]] | None:
        """Of each parameter, as the step alone made them; None where that failed."""
        return [each["state"] or {} for each in self._alone] if self._alone else None

    def why_not(self) -> str | None:
        """After the whole step."""
        if self.why is not None:
            return self.why
        for alone, whole in zip(self._alone, self._now(with_gradients=False)):
            if not _same(alone, whole):
                return "a layer's step alone has other results than in the whole step"
        return None

    def _now(self, with_gradients: bool) -> list[dict[str, Any]]:
        state = self._optimizer.state
        found = []
        for each in self._parameters:
            one = {"value": each.detach().clone(),
                   "state": copy.deepcopy(state[each]) if each in state else None}
            if with_gradients and each.grad is not None:
                one["gradient"] = each.grad.detach().clone()
            found.append(one)
        return found

    def _put_back(self, before: Sequence[dict[str, Any]]) -> None:
        with torch.no_grad():
            for parameter, one in zip(self._parameters, before):
                parameter.copy_(one["value"])
                if parameter.grad is not None:
                    parameter.grad.copy_(one["gradient"])
                if one["state"] is None:
                    self._optimizer.state.pop(parameter, None)
                else:
                    self._optimizer.state[parameter] = one["state"]


class Known:
    """In its place, of a class that is known to update each element by itself."""

    why: str | None = None

    def why_not(self) -> str | None:
        return None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and \
            all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return isinstance(other, (list, tuple)) and len(one) == len(other) and \
            all(map(_same, one, other))
    return bool(one == other)
