"""keep="auto" in the loop form: of how many last layers the graphs fit beside all else.

Layers that are kept and all behind them run in one go for each micro-batch, as the plain loop runs
everything. So the first step, which is the plain loop, takes the memory that it would take to keep
all layers, and the second one, which keeps none, the least; each layer that is kept adds an equal
part of the difference. As many are kept as leave a tenth of the budget.

Where Firn is the allocator alone: should later steps need more, Firn moves it, and no step fails.
"""

from __future__ import annotations

from typing import Sequence

import torch

import firn
from firn.relay.layers import Layer

PART = .9  # of the budget


class Keep:
    """Looks at the first two steps that end. `most`: layers."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        devices = {parameter.device for layer in layers
                   for parameter in layer.module.parameters()}
        device = devices.pop() if len(devices) == 1 else torch.device("cpu")
        self._device = device if device.type == "cuda" and firn.enabled() else None
        self._most: list[int] = []    # bytes allocated, of each step
        self._begin: list[int] = []   # and at its begin
        self._now = 0

    @property
    def looking(self) -> bool:
        return self._device is not None and len(self._most) < 2

    def begin_step(self) -> None:
        if self.looking:
            del self._begin[len(self._most):]
            self._begin.append(torch.cuda.memory_allocated(self._device))
            self._now = 0

    def look(self) -> None:
        """A layer's graph is there, or a whole micro-batch's."""
        if self.looking:
            self._now = max(self._now, torch.cuda.memory_allocated(self._device))

    def end_step(self) -> int:
        """How many layers to keep from now on. Behind a step that was looked at."""
        self._most.append(self._now)
        if self.looking:
            return 0
        # (The optimizer makes its states at the end of the first step.)
        plain = self._most[0] + max(0, self._begin[1] - self._begin[0])
        return kept(len(self._layers), plain, self._most[1], self._budget())

    def _budget(self) -> int:
        assert self._device is not None
        index = self._device.index
        if index is None:
            index = torch.cuda.current_device()
        return next((each["budget_bytes"] for each in firn.stats().get("devices", [])
                     if each["device"] == index), 0)


def kept(layers: int, plain: int, least: int, budget: int) -> int:
    """The number of layers. Bytes: plain, with all of them kept; least, with none."""
    room = PART * budget
    if plain <= room:
        return layers
    if least >= room:
        return 0
    return min(layers, int(layers * (room - least) / (plain - least)))
