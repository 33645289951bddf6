"""The optimizer's steps: of one layer's parameters as soon as their gradients are whole, and of all
that is left at the end.

The user's own optimizer object makes them, with its groups cut down to the layer's parameters for
the time of one step(). That is the same as one step() of everything where the optimizer treats each
parameter by itself, which its first step with gradients of layers proves (proof.py). Where that
fails, and where the optimizer has hooks, all is stepped at once, at the end.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, Callable, Sequence

import torch
from torch import nn

from firn.relay.layers import Layer
from firn.relay.proof import Known, Proof, smallest, why_no_trial
from firn.relay.subset import step_of
from firn.relay.trees import Refused


def check_optimizer(optimizer: Any) -> None:
    """Refused is what cannot step without a closure."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"firn.relay: a {type(optimizer).__name__} is no torch.optim.Optimizer")
    if not {"param_groups", "state", "_optimizer_step_pre_hooks"} <= vars(optimizer).keys():
        raise Refused(f"firn.relay: {type(optimizer).__name__} has not called "
                      "torch.optim.Optimizer.__init__: give firn.relay the optimizer that it wraps")
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
        self._proof: Known | Proof | None = None
        self._left: dict[nn.Parameter, tuple[int, int]] = {}  # gradients, as backward left them
        self._hooks = [optimizer.register_step_pre_hook(self._before),
                       optimizer.register_step_post_hook(self._after)]

    @property
    def where(self) -> str:
        return "device"

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
        self._step_layer(layer, wanted)
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

    def abandon(self) -> None:
        """The step failed: nothing of it is on its way when this returns."""

    def _step_layer(self, layer: Layer, wanted: set[nn.Parameter]) -> None:
        self._step_of(wanted)

    def _step_of(self, wanted: set[nn.Parameter]) -> None:
        self._inner = True
        try:
            step_of(self.optimizer, wanted)
        finally:
            self._inner = False

    def _others(self) -> str | None:
        """Hooks of others, which a step of a layer would call too often."""
        optimizer = self.optimizer
        global_hooks = sys.modules[torch.optim.Optimizer.__module__]  # (torch.optim hides it)
        hooks = [each for all_hooks in (optimizer._optimizer_step_pre_hooks,
                                        optimizer._optimizer_step_post_hooks,
                                        global_hooks._global_optimizer_pre_hooks,
                                        global_hooks._global_optimizer_post_hooks)
                 for each in all_hooks.values() if not getattr(each, "of_firn", False)]
        return None if len(hooks) == len(self._hooks) else \
            "it has hooks, which see whole steps only"

    def _before(self, *_: Any) -> None:
        if self._inner:
            return
        self._check_updated()
        if self.wanted and not self.eager and self._proof is None:
            self._check_left()
            parameters = smallest(self.optimizer, self._layers)
            if not parameters:
                self._prove_nothing()
                return
            why = self._others() or why_no_trial(self.optimizer)
            if why is None:
                self._proof = Proof(self.optimizer, parameters, self._step_of)
            else:
                self._refuse(why)

    def _check_updated(self) -> None:
        for layer in self.updated():
            for parameter in layer.own:
                if parameter.grad is not None and self._known({parameter}):
                    raise Refused(f"firn.relay: layer {layer} was updated, and then one of its "
                                  "parameters got another gradient, from outside of the layer: "
                                  "eager=False updates it at the end")

    def _check_left(self) -> None:
        left, self._left = self._left, {}
        if any(_identity(each) != identity for each, identity in left.items()):
            raise Refused("firn.relay: gradients were changed between a layer's backward pass "
                          "and step() (clipping, a scaler, a use of its parameters "
                          "elsewhere): it cannot be updated before that; eager=False, or "
                          "clip= and scaler= of the loop form")

    def _prove_nothing(self) -> None:
        """Layers are frozen, or the step has no gradients."""
        self.eager = self.wanted and all(_is_shared(each) for each in self._layers)

    def _after(self, *_: Any) -> None:
        if self._inner:
            return
        self.steps += 1
        if self._proof is not None:
            why = self._proof.why_not()
            self._proof = None
            self._proven(why)
        for layer in self._layers:
            layer.begin_step()

    def _proven(self, why: str | None) -> None:
        if why is None:
            self.eager = True
        else:
            self._refuse(why)

    def _refuse(self, why: str) -> None:
        self.wanted = False
        self._say(f"{type(self.optimizer).__name__} steps once for all layers, at the end: {why}")


def _is_shared(layer: Layer) -> bool:
    """It has nothing that could be stepped by itself, now or later."""
    return not layer.own and all(each.requires_grad for each in layer.module.parameters())


def _identity(parameter: nn.Parameter) -> tuple[int, int]:
    gradient = parameter.grad
    return (0, 0) if gradient is None else (id(gradient), gradient._version)
