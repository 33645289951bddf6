"""The optimizer's steps: of one layer's parameters as soon as their gradients are whole, and of all
that is left at the end.

The user's own optimizer object makes them, with its groups cut down to the layer's parameters for
the time of one step(). That is the same as one step() of everything where the optimizer treats each
parameter by itself, which its first step proves: the smallest layer is stepped alone, put back, and
compared with what the whole step makes of it. Where it differs (values of a group that count steps,
norms over all gradients), and where the optimizer has hooks, all is stepped at once, at the end.
"""

from __future__ import annotations

import copy
import inspect
import sys
from typing import Any, Callable, Sequence

import torch
from torch import nn

from firn.relay.layers import Layer
from firn.relay.trees import Refused


def check_optimizer(optimizer: Any) -> None:
    """Refused is what cannot step without a closure."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"firn.relay: a {type(optimizer).__name__} is no torch.optim.Optimizer")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if isinstance(optimizer, torch.optim.LBFGS) or \
            (closure is not None and closure.default is inspect.Parameter.empty):
        raise Refused(f"firn.relay: {type(optimizer).__name__} steps with a closure that runs the "
                      "model again: choose an optimizer without one")


class Update:
    """Steps one optimizer. `eager`: layer by layer, once that is proven. Calls `say` with why not.

    Owns a hook before the optimizer's steps and one behind them, until close()."""

    def __init__(self, optimizer: torch.optim.Optimizer, layers: Sequence[Layer], eager: bool,
                 say: Callable[[str], None]) -> None:
        self.optimizer, self._layers, self._say = optimizer, layers, say
        self.wanted, self.eager = eager, False
        self.steps = 0           # that the user, or the relay at a step's end, made
        self._inner = False      # within a step of one layer
        self._proof: _Proof | None = None
        self._left: dict[nn.Parameter, tuple[int, int]] = {}  # gradients, as backward left them
        self._hooks = [optimizer.register_step_pre_hook(self._before),
                       optimizer.register_step_post_hook(self._after)]

    def close(self) -> None:
        for each in self._hooks:
            each.remove()

    def layer_done(self, layer: Layer) -> None:
        """Its gradients are whole."""
        wanted = {each for each in layer.own if each.grad is not None}
        if self.wanted and not self.eager:
            self._left.update((each, _identity(each)) for each in wanted)
        if not self.eager or layer.updated or self._others() is not None:
            return
        self._step_of(wanted)
        for parameter in self._known(wanted):
            parameter.grad = None
        layer.updated = True

    def updated(self) -> list[Layer]:
        return [each for each in self._layers if each.updated]

    def drop_gradients(self) -> None:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _known(self, wanted: set[nn.Parameter]) -> list[nn.Parameter]:
        return [each for group in self.optimizer.param_groups for each in group["params"]
                if each in wanted]

    def _step_of(self, wanted: set[nn.Parameter]) -> None:
        groups = self.optimizer.param_groups
        every, params = list(groups), [group["params"] for group in groups]
        self._inner = True
        try:
            for group in every:
                group["params"] = [each for each in group["params"] if each in wanted]
            groups[:] = [group for group in every if group["params"]]
            if groups:
                self.optimizer.step()
        finally:
            self._inner = False
            groups[:] = every
            for group, before in zip(every, params):
                group["params"] = before

    def _others(self) -> str | None:
        """Hooks of others, which a step of a layer would call too often."""
        optimizer = self.optimizer
        global_hooks = sys.modules[torch.optim.Optimizer.__module__]  # (torch.optim hides it)
        hooks = len(optimizer._optimizer_step_pre_hooks) \
            + len(optimizer._optimizer_step_post_hooks) \
            + len(global_hooks._global_optimizer_pre_hooks) \
            + len(global_hooks._global_optimizer_post_hooks)
        return None if hooks == len(self._hooks) else "it has hooks, which see whole steps only"

    def _before(self, *_: Any) -> None:
        if self._inner:
            return
        for layer in self.updated():
            for parameter in layer.own:
                if parameter.grad is not None and self._known({parameter}):
                    raise Refused(f"firn.relay: layer {layer} was updated, and then one of its "
                                  "parameters got another gradient, from outside of the layer: "
                                  "eager=False updates it at the end")
        if self.wanted and not self.eager and self._proof is None:
            left, self._left = self._left, {}
            if any(_identity(each) != identity for each, identity in left.items()):
                raise Refused("firn.relay: gradients were changed between a layer's backward pass "
                              "and step() (clipping, a scaler, a use of its parameters "
                              "elsewhere): it cannot be updated before that; eager=False, or "
                              "clip= and scaler= of the loop form")
            why = self._others()
            if why is None:
                self._proof = _Proof(self.optimizer, self._layers, self._step_of)
            else:
                self._refuse(why)

    def _after(self, *_: Any) -> None:
        if self._inner:
            return
        self.steps += 1
        if self._proof is not None:
            why = self._proof.why_not()
            self._proof = None
            if why is None:
                self.eager = True
            else:
                self._refuse(why)
        for layer in self._layers:
            layer.begin_step()

    def _refuse(self, why: str) -> None:
        self.wanted = False
        self._say(f"{type(self.optimizer).__name__} steps once for all layers, at the end: {why}")


def _identity(parameter: nn.Parameter) -> tuple[int, int]:
    gradient = parameter.grad
    return (0, 0) if gradient is None else (id(gradient), gradient._version)


class _Proof:
    """Is a step of one layer's parameters what the whole step makes of them?"""

    def __init__(self, optimizer: torch.optim.Optimizer, layers: Sequence[Layer],
                 step_of: Callable[[set[nn.Parameter]], None]) -> None:
        self._optimizer = optimizer
        self._why: str | None = None
        known = {each for group in optimizer.param_groups for each in group["params"]}
        choices = [[each for each in layer.own if each in known and each.grad is not None]
                   for layer in layers]
        self._parameters = min((each for each in choices if each), default=[],
                               key=lambda each: sum(one.numel() for one in each))
        before = self._now(with_gradients=True)
        figures = self._figures()
        settings = [_Settings(each) for each in (vars(optimizer), *optimizer.param_groups)]
        try:
            step_of(set(self._parameters))
            if self._figures() != figures:
                changed = [key for key, value in self._figures().items()
                           if figures.get(key) != value]
                self._why = f"its value {changed[0]!r} changes with each step" if changed else \
                    "values of its groups change with each step"
        except Exception as error:
            self._why = f"a step of one layer failed ({error})"
        self._alone = self._now(with_gradients=False)
        self._put_back(before)
        for each in settings:
            each.put_back()

    def why_not(self) -> str | None:
        """After the whole step."""
        if self._why is not None:
            return self._why
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

    def _figures(self) -> dict[tuple[int, str], float]:
        """Numbers of the groups, and of the optimizer itself (schedulers count in some)."""
        holders = [(-1, vars(self._optimizer)), *enumerate(self._optimizer.param_groups)]
        return {(at, key): value for at, holder in holders for key, value in holder.items()
                if type(value) in (int, float) and key not in ("_step_count", "_opt_called")}


class _Settings:
    """What a group, or an optimizer, has beside its parameters and their states."""

    def __init__(self, holder: dict[str, Any]) -> None:
        self._holder, self._before = holder, {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in holder.items() if key != "params"}

    def put_back(self) -> None:
        for key in self._holder.keys() - self._before.keys() - {"params"}:
            del self._holder[key]
        for key, value in self._before.items():
            if isinstance(value, torch.Tensor) and isinstance(self._holder[key], torch.Tensor):
                with torch.no_grad():
                    self._holder[key].copy_(value)
            else:
                self._holder[key] = value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.shape == other.shape and \
            bool(((one == other) | ((one != one) & (other != other))).all())
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and \
            all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return isinstance(other, (list, tuple)) and len(one) == len(other) and \
            all(map(_same, one, other))
    return bool(one == other)
