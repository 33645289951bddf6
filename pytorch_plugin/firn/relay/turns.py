"""A micro-batch's turn in a step: its calls of layers, and when its backward pass may go on.

Gradients are to be summed as the loop sums them: of each parameter, micro-batch 0's first. So a
turn runs a part of its backward pass (from one layer's node up to the next) once every turn before
it has come as far. Calls have places, by the order in which the plain first step made them, so that
turns that leave layers out can be compared. Turn 0 waits for nobody: some turn can always go on.
"""

from __future__ import annotations

import math
from typing import Any, Sequence

from firn.relay.baton import Baton
from firn.relay.draws import Draws
from firn.relay.node import Call


class Places:
    """Of the nth call of each layer: its place among all calls of a micro-batch."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], int] = {}

    def of(self, layer: int, count: int) -> int:
        """(A new one is the last, from now on.)"""
        return self._places.setdefault((layer, count), len(self._places))


class Turn:
    """In a thread of its own, or in the caller's, where the step is the plain loop (baton None)."""

    def __init__(self, number: int, baton: Baton | None, draws: Draws, places: Places) -> None:
        self.number, self._baton, self._draws, self._places = number, baton, draws, places
        self.forward_ended = False
        self.calls: dict[int, int] = {}  # of layers, by number
        self.graph: set[Any] = set()     # the nodes of layers that ran plainly
        self._left: list[tuple[int, Call]] = []  # without a backward pass yet
        self._place = math.inf           # that of the call that waits for its backward pass

    def seam(self) -> None:
        """The other turns run up to their next one."""
        if self._baton is not None:
            self._draws.leave(self.number)
            self._baton.pass_on(self.number)
            self._draws.enter(self.number)

    def enter(self, layer: int) -> None:
        """A call of the layer in the forward pass."""
        self._place = math.inf
        self.calls[layer] = self.calls.get(layer, 0) + 1
        self._places.of(layer, self.calls[layer])

    def made(self, call: Call) -> None:
        """The call that was entered last has a node."""
        layer = call.layer.number
        self._left.append((self._places.of(layer, self.calls[layer]), call))

    def end_forward(self, reached: set[Call], before: Sequence[Turn]) -> None:
        """The loss is there, and its graph has the calls `reached`. Returns when its backward pass
        may begin."""
        for _, call in self._left:
            if call not in reached:
                call.layer.forwards -= 1
        self._left = [each for each in self._left if each[1] in reached]
        self.forward_ended = True
        self._wait(before)

    def begin_backward(self, call: Call, before: Sequence[Turn]) -> None:
        """Returns when the call's backward pass may run, and what follows it."""
        self._place = next(place for place, each in self._left if each is call)
        self.seam()
        self._left = [each for each in self._left if each[1] is not call]
        self._wait(before)

    def _wait(self, before: Sequence[Turn]) -> None:
        following = self._left[-1][0] if self._left else -math.inf
        while not all(each.has_come_to(following) for each in before):
            self.seam()

    def has_come_to(self, place: float) -> bool:
        """Its backward pass is done with all that lies behind `place`."""
        ended = self._baton is not None and self._baton.has_ended(self.number)
        return ended or self._place <= place
