"""Hints to Firn at the seams of the first steps, before it knows the period by itself: the next
layer's parameters are wanted soon, those of the layer that is done are not."""

from __future__ import annotations

from typing import Sequence

import firn
from firn.relay.layers import Layer
from firn.relay.update import Update

STEPS = 3


class Hints:
    def __init__(self, layers: Sequence[Layer], update: Update) -> None:
        self._layers, self._update = layers, update

    def wanted(self, number: int) -> None:
        """Layer `number` is the next one, if there is one of that number."""
        if self._in_use() and 0 <= number < len(self._layers):
            firn.prefetch(self._layers[number].module.parameters())

    def done(self, layer: Layer) -> None:
        if self._in_use():
            firn.cold(layer.module.parameters())

    def _in_use(self) -> bool:
        return self._update.steps < STEPS and firn.enabled()
