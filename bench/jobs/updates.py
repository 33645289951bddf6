"""The optimizer's step of a training step: all at once, or of each parameter as soon as its
gradient is whole, which is let go then; by itself, or of a master and states of 32 bits."""

from __future__ import annotations

from typing import Callable

import torch


class AtTheEnd:
    def __init__(self, model: torch.nn.Module, make: Callable[[list], torch.optim.Optimizer]):
        self._optimizer = make(list(model.parameters()))

    def finish(self) -> None:
        """Behind the last backward pass of a step."""
        self._optimizer.step()
        self._optimizer.zero_grad()

    def states(self) -> list[torch.Tensor]:
        return [each for state in self._optimizer.state.values() for each in state.values()]


class Eager:
    """The first step counts how often a gradient is added to, and updates at its end; in the later
    ones a parameter is updated behind the last addition, in the backward pass. The passes must not
    differ from step to step."""

    def __init__(self, model: torch.nn.Module, make: Callable[[list], torch.optim.Optimizer]):
        self._optimizers = {each: make([each]) for each in model.parameters()}
        self._added = dict.fromkeys(self._optimizers, 0)
        self._whole: dict[torch.nn.Parameter, int] = {}       # so often: learned in the first step
        for each in self._optimizers:
            if each.requires_grad:
                each.register_post_accumulate_grad_hook(self._add)

    def _add(self, parameter: torch.nn.Parameter) -> None:
        self._added[parameter] += 1
        if self._added[parameter] == self._whole.get(parameter):
            self._update(parameter)

    def _update(self, parameter: torch.nn.Parameter) -> None:
        self._optimizers[parameter].step()
        parameter.grad = None

    def finish(self) -> None:
        if not self._whole:
            for each in self._optimizers:
                self._update(each)
            self._whole = dict(self._added)
        if self._added != self._whole or any(each.grad is not None for each in self._optimizers):
            raise RuntimeError("gradients came otherwise than in the first step: parameters were "
                               "updated by parts of them")
        self._added = dict.fromkeys(self._added, 0)

    def states(self) -> list[torch.Tensor]:
        return [each for optimizer in self._optimizers.values()
                for state in optimizer.state.values() for each in state.values()]


class Masters(Eager):
    """AdamW with a master and two states of 32 bits of each parameter, which has 16. `step` runs
    it: (parameter, its gradient, the three)."""

    def __init__(self, model: torch.nn.Module,
                 step: Callable[[torch.Tensor, torch.Tensor, list[torch.Tensor]], None]):
        super().__init__(model, lambda _: None)
        self._step = step
        self._wide = {each: [torch.empty_like(each, dtype=torch.float32, requires_grad=False)
                             for _ in range(3)] for each in model.parameters()}

    def _update(self, parameter: torch.nn.Parameter) -> None:
        if parameter.grad is not None:
            self._step(parameter, parameter.grad, self._wide[parameter])
        parameter.grad = None

    def states(self) -> list[torch.Tensor]:
        return [each for wide in self._wide.values() for each in wide]
