"""Random numbers: the generators' states, and where each micro-batch's draws begin.

A CUDA generator is a seed and an offset, so that each micro-batch can draw as in the plain loop: it
begins behind all that the ones before it draw, which is known once a part of these shapes has run.
The CPU's generator has no offset: its draws come in the relay's order.
"""

from __future__ import annotations

from typing import Any, Callable, Hashable, Iterable

import torch

from firn.relay.trees import tensors_in

_FAR = 1 << 32  # apart from each other: no micro-batch draws that often


def generators_of(tensors: Iterable[torch.Tensor]) -> list[torch.Generator]:
    """The default generators of the CUDA devices that `tensors` are on."""
    devices = sorted({each.device.index for each in tensors if each.is_cuda})
    return [torch.cuda.default_generators[index] for index in devices]


def kind_of(part: Any) -> Hashable:
    """Parts of one kind draw equally often."""
    return tuple((tuple(each.shape), each.dtype) for each in tensors_in(part))


class Draws:
    """The offsets of micro-batches, for one model."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._known: dict[Hashable, list[int]] = {}
        self._varies: set[Hashable] = set()
        self.on_cpu = False
        self._generators: list[torch.Generator] = []
        self._kinds: list[Hashable] = []
        self._begins: list[list[int]] = []
        self._states: list[list[torch.Tensor]] = []
        self._exact = True

    def learn(self, kind: Hashable, drawn: list[int]) -> None:
        before = self._known.setdefault(kind, drawn)
        if before != drawn:
            self._varies.add(kind)
            self._known[kind] = drawn

    def know(self, kinds: Iterable[Hashable]) -> bool:
        """Where each of such parts begins to draw."""
        return all(kind in self._known and kind not in self._varies for kind in kinds)

    def begin(self, generators: list[torch.Generator], kinds: list[Hashable]) -> None:
        """Before a step: each micro-batch's state of each generator."""
        self._generators, self._kinds = generators, kinds
        self._exact = self.know(kinds)
        at = [each.get_offset() for each in generators]
        self._begins, self._states = [], []
        for kind in kinds:
            self._begins.append(at)
            self._states.append([_state_at(each, offset)
                                 for each, offset in zip(generators, at)])
            more = self._known[kind] if self._exact else [_FAR] * len(at)
            at = [each + further for each, further in zip(at, more)]

    def enter(self, number: int) -> None:
        for generator, state in zip(self._generators, self._states[number]):
            generator.set_state(state)

    def leave(self, number: int) -> None:
        self._states[number] = [each.get_state() for each in self._generators]

    def end(self) -> None:
        """After a step: the generators stand behind all draws."""
        drawn = []
        for number, begins in enumerate(self._begins):
            self.enter(number)
            drawn.append([generator.get_offset() - begin
                          for generator, begin in zip(self._generators, begins)])
        for at, generator in enumerate(self._generators):
            moved = [counts[at] for counts in drawn]
            total = sum(moved) if self._exact or not any(moved) else _FAR * len(moved)
            generator.set_offset(self._begins[0][at] + total)
        wrong = [kind for kind, counts in zip(self._kinds, drawn)
                 if self._exact and self._known[kind] != counts]
        if wrong or (not self._exact and any(map(any, drawn))):
            self._say("the micro-batches' draws of random numbers (dropout) are not the loop's in "
                      "this step, since parts of such shapes had not been seen, or do not always "
                      "draw equally often: equal in distribution")
        for kind, counts in zip(self._kinds, drawn):
            self.learn(kind, counts)


def _state_at(generator: torch.Generator, offset: int) -> torch.Tensor:
    now = generator.get_offset()
    generator.set_offset(offset)
    state = generator.get_state()
    generator.set_offset(now)
    return state
