"""A batch in parts, for one layer: each argument is cut along its first dimension where that is the
batch's, and the results are put together again.

That the first dimension is the batch, and that its rows have nothing to do with each other, is
tried: a layer runs over the whole batch and over the parts, and the two are compared; in eval()
where it draws random numbers (dropout). So it is in the first step of a kind of call, and again
when the optimizer has made 1, 10 and 100 steps: a layer may do nothing at first (gates of zero).
"""

from __future__ import annotations

import copy
from typing import Any, Callable, Hashable, Sequence

import torch
from torch import nn

from firn.relay import trees
from firn.relay.layers import Layer
from firn.relay.node import Gradients, Run
from firn.relay.sameness import close
from firn.relay.state import Settings
from firn.relay.sums import Sums
from firn.relay.trees import Refused


def batch_of(tensors: Sequence[torch.Tensor]) -> int:
    """The size of the batch: of the first argument that needs a gradient, or is of floating point,
    or is a tensor."""
    shaped = [each for each in tensors if each.dim() > 0]
    for chosen in (lambda each: each.requires_grad, lambda each: each.is_floating_point(),
                   lambda each: True):
        for tensor in shaped:
            if chosen(tensor):
                return tensor.size(0)
    return 1


class Cut:
    """How the arguments of one call are cut into at most `parts` parts."""

    def __init__(self, tensors: Sequence[torch.Tensor], parts: int) -> None:
        self.batch = batch_of(tensors)
        self.parts = max(1, min(parts, self.batch))
        edges = [self.batch * part // self.parts for part in range(self.parts + 1)]
        self.bounds = list(zip(edges, edges[1:]))
        self.is_cut = [self.parts > 1 and each.dim() > 0 and each.size(0) == self.batch
                       for each in tensors]

    def kind(self, tensors: Sequence[torch.Tensor]) -> Hashable:
        return tuple((each.dim(), cut) for each, cut in zip(tensors, self.is_cut))

    def part(self, tensors: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
        begin, end = self.bounds[number]
        return [each[begin:end] if cut else each for each, cut in zip(tensors, self.is_cut)]


def try_cut(layer: Layer, structure: Any, tensors: Sequence[torch.Tensor], cut: Cut,
            settings: Settings) -> list[bool]:
    """For each tensor of the result, whether it is put together from the parts'; the others are the
    same in each part. Refused, where whole and parts differ."""
    modes = [(module, module.training) for module in layer.module.modules()]
    try:
        with torch.no_grad(), settings.without_cache(), settings.as_they_were():
            whole = _run(layer, structure, tensors)
            if settings.has_drawn():
                layer.module.eval()
                whole = _run(layer, structure, tensors)
            parts = _parts(layer, structure, tensors, cut)
    finally:
        for module, mode in modes:
            module.training = mode
    loose = settings.casts or torch.backends.cuda.matmul.allow_tf32
    joined = []
    for at, tensor in enumerate(whole):
        pieces = [each[at] for each in parts if len(each) == len(whole)]
        sizes = [each.size(0) if each.dim() > 0 else 0 for each in pieces]
        if len(pieces) == cut.parts and sizes == [end - begin for begin, end in cut.bounds] and \
                close(tensor, torch.cat(pieces), loose):
            joined.append(True)
        elif len(pieces) == cut.parts and all(
                close(tensor, each, loose) for each in pieces):
            joined.append(False)
        else:
            raise Refused(
                f"firn.relay: layer {layer} has other results over parts of the batch than over "
                f"all of it: its first dimension ({cut.batch}) is not the batch (batch_first), or "
                "its rows depend on each other; the loop form relay.step() cuts nothing")
    return joined


def _parts(layer: Layer, structure: Any, tensors: Sequence[torch.Tensor],
           cut: Cut) -> list[list[torch.Tensor]]:
    try:
        return [_run(layer, structure, cut.part(tensors, number)) for number in range(cut.parts)]
    except Refused:
        raise
    except Exception as error:  # (all of the batch has just passed)
        raise Refused(f"firn.relay: layer {layer} cannot run over {cut.parts} parts of a batch of "
                      f"{cut.batch}: {type(error).__name__}: {error}") from error


def _run(layer: Layer, structure: Any, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    args, kwargs = trees.together(structure, tensors)
    result: list[torch.Tensor] = []
    trees.apart(layer.forward(*args, **kwargs), result, f"layer {layer} returned")
    return result


class ChunkedRun:
    """A layer over each part of a batch: as a Run, over all of it, with one use of each input and
    of each shared parameter. Gradients of what is cut are put together; those of what is not are
    summed, in order, of the parameters `wide` in 32 bits."""

    def __init__(self, run_part: Callable[[int], Run], whole: Run, cut: Cut, needs: Sequence[bool],
                 joined: Sequence[bool], wide: Sequence[nn.Parameter] = ()) -> None:
        self.whole = whole  # over the whole batch, for a backward pass with a graph
        self._wide = wide
        self._run_part, self._bounds, self._joined = run_part, cut.bounds, joined
        self._runs: list[Run] = []
        self.needed: list[bool] = []
        self._is_cut = [cut for cut, needed in zip(cut.is_cut, needs) if needed]

    def forward(self, result: list[torch.Tensor]) -> Any:
        results: list[list[torch.Tensor]] = []
        structure = None
        for number in range(len(self._bounds)):
            self._runs.append(self._run_part(number))
            results.append([])
            structure = self._runs[-1].forward(results[-1])
            self._runs[-1].leaves = []
        self.needed = self._runs[-1].needed
        result += [torch.cat(pieces) if joined else pieces[0]
                   for pieces, joined in zip(zip(*results), self._joined)]
        return structure

    def backward(self, uses: Sequence[int], shared: Sequence[torch.Tensor], which: Sequence[int],
                 gradients: Sequence[torch.Tensor | None]) -> list[Gradients]:
        found: list[list[torch.Tensor | None]] = []
        sums: list[torch.Tensor | None] = [None] * len(shared)
        wide = Sums()
        try:
            for number, (begin, end) in enumerate(self._bounds):
                part = [None if each is None else each[begin:end] if self._joined[at] else
                        each if number == 0 else None for at, each in zip(which, gradients)]
                given = [each[0] for each in
                         self._runs[number].backward(uses, shared, which, part)]
                found.append(given[:len(self._is_cut)])
                sums = [_sum([one, other])
                        for one, other in zip(sums, given[len(self._is_cut):], strict=True)]
                wide.fold(self._wide)
        finally:
            wide.finish()
        return [*([_whole(pieces, cut, self._bounds)]
                  for pieces, cut in zip(zip(*found), self._is_cut)), *([each] for each in sums)]

    def spare(self) -> ChunkedRun:
        """One more of it, for one more backward pass."""
        other = copy.copy(self)
        other._runs = [each.spare() for each in self._runs]
        return other


def _whole(pieces: Sequence[torch.Tensor | None], cut: bool,
           bounds: Sequence[tuple[int, int]]) -> torch.Tensor | None:
    given = [each for each in pieces if each is not None]
    if not given:
        return None
    if cut:
        shape = given[0].shape[1:]
        return torch.cat([given[0].new_zeros((end - begin, *shape)) if each is None else each
                          for each, (begin, end) in zip(pieces, bounds)])
    return _sum(given)


def _sum(gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    total = None
    for each in gradients:
        total = each if total is None else total if each is None else total + each
    return total


