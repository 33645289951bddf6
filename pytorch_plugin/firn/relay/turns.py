"""A micro-batch's turn in a step: its calls of layers, and when its backward pass may go on.

Gradients are to be summed as the loop sums them: of each parameter, micro-batch 0's first. So a
turn runs a part of its backward pass (from one layer's node up to the next) once every turn before
it has come as far. Calls have places, in the order in which micro-batches make them, so that turns
that leave layers out can be compared; where layers share parameters with others, such a turn waits
until those before it have ended, for its gradient of a shared parameter may be whole sooner. Turn 0
waits for nobody: some turn can always go on.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Sequence

from firn.relay.baton import Baton
from firn.relay.draws import Draws
from firn.relay.watch import Inside


class Places:
    """The nth calls of layers, in the order in which micro-batches make them."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], Fraction] = {}

    def of(self, layer: int, count: int, behind: Fraction | None) -> Fraction:
        """That of the layer's call number `count`; a new one is next to the place `behind`, which
        its micro-batch had before."""
        key = (layer, count)
        if key not in self._places:
            above = [each for each in self._places.values() if behind is None or each > behind]
            if not above:
                self._places[key] = Fraction(len(self._places)) if behind is None else behind + 1
            else:
                below = min(above) - 2 if behind is None else behind
                self._places[key] = (min(above) + below) / 2
        return self._places[key]


class Turn:
    """In a thread of its own, or in the caller's, where the step is the plain loop (baton None)."""

    def __init__(self, number: int, baton: Baton | None, draws: Draws, places: Places) -> None:
        self.number, self._baton, self._draws, self._places = number, baton, draws, places
        self.forward_ended = False
        self.calls: dict[int, int] = {}  # of layers, by number
        self.inside = Inside()           # until the loss is there
        self._left: list[tuple[Fraction, Any]] = []  # Calls without a backward pass yet
        self._last: Fraction | None = None  # the place of the last call
        self._shape: list[Fraction] = []    # of all its backward passes, once forward_ended
        self._alone = False                 # waits until the turns before it have ended
        self._place: Fraction | float = math.inf  # of the call whose backward pass is next

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
        self._last = self._places.of(layer, self.calls[layer], self._last)

    def made(self, call: Any) -> None:
        """The call that was entered last has a node."""
        assert self._last is not None
        self._left.append((self._last, call))

    def end_forward(self, reached: set[Any], before: Sequence[Turn], sharing: bool) -> None:
        """The loss is there, and its graph has the calls `reached`. Returns when its backward pass
        may begin. `sharing`: a layer has parameters that others use too."""
        for _, call in self._left:
            if call not in reached:
                call.layer.forwards -= 1
        self._left = [each for each in self._left if each[1] in reached]
        self._shape = [place for place, _ in self._left]
        self.forward_ended = True
        while not all(each.forward_ended for each in before):
            self.seam()
        self._alone = sharing and any(each._shape != self._shape for each in before)
        self._wait(before)

    def begin_backward(self, call: Any, before: Sequence[Turn]) -> None:
        """Returns when the call's backward pass may run, and what follows it."""
        self._place = next(place for place, each in self._left if each is call)
        self.seam()
        self._left = [each for each in self._left if each[1] is not call]
        self._wait(before)

    def end_any_forward(self, before: Sequence[Turn]) -> None:
        """As end_forward(), where the loss's graph is not looked at; once."""
        if not self.forward_ended:
            self.end_forward({each for _, each in self._left}, before, True)

    def reach(self, call: Any, before: Sequence[Turn]) -> None:
        """As begin_backward(), where the loss's graph is not looked at: calls behind this one are
        left out of it. Nothing of a second pass through a call."""
        places = [place for place, each in self._left if each is call]
        if places:
            self.end_any_forward(before)
            self._left = [each for each in self._left if each[0] <= places[0]]
            self.begin_backward(call, before)

    def _wait(self, before: Sequence[Turn]) -> None:
        following: Fraction | float = -math.inf
        if self._left and not self._alone:
            following = self._left[-1][0]
        while not all(each.has_come_to(following) for each in before):
            self.seam()

    def has_come_to(self, place: Fraction | float) -> bool:
        """Its backward pass is done with all that lies behind `place`."""
        ended = self._baton is not None and self._baton.has_ended(self.number)
        return ended or self._place <= place
