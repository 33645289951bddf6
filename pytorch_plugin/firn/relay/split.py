"""The split form: the program calls the model with a whole batch; each layer runs over its parts,
one after the other, as one node of autograd."""

from __future__ import annotations

import sys
from typing import Any, Hashable, Sequence

import torch
from torch import nn

from firn.relay import trees, watch
from firn.relay.chunks import ChunkedRun, Cut, try_cut
from firn.relay.executor import Relay
from firn.relay.layers import Layer
from firn.relay.node import Call, Run
from firn.relay.trees import Refused


_TRIALS = (1, 10, 100)


class SplitRelay(Relay):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: int, *,
                 eager: bool, **options: Any) -> None:
        super().__init__(model, optimizer, micro_batches, eager=eager, **options)
        self._joined: dict[Hashable, list[bool]] = {}
        self._next_trial: dict[Hashable, int] = {}  # at which step of the optimizer

    def _enter(self, layer: Layer, args: Any, kwargs: Any) -> Any:
        if self._is_inside():
            return layer.forward(*args, **kwargs)
        unfinished = self._update.updated()
        if unfinished:
            raise Refused(f"firn.relay: {len(unfinished)} layers were updated in the backward "
                          "pass, and optimizer.step() did not follow: eager=False leaves all to "
                          "step()")
        if layer.kept or not torch.is_grad_enabled():
            return layer.forward(*args, **kwargs)
        tensors: list[torch.Tensor] = []
        structure = trees.apart((args, kwargs), tensors, f"layer {layer} is given")
        return self._run(layer, structure, tensors)

    def _run(self, layer: Layer, structure: Any, tensors: Sequence[torch.Tensor]) -> Any:
        """The layer's result, from a node that runs it again."""
        cut = Cut(tensors, self.micro_batches)
        self._hints.wanted(layer.number + 1)
        with self._inside():
            if cut.parts == 1:
                return self._again(layer, structure, tensors, watch.Inside())[0]
            return self._in_parts(layer, structure, tensors, cut)

    def _in_parts(self, layer: Layer, structure: Any, tensors: Sequence[torch.Tensor],
                  cut: Cut) -> Any:
        settings = self._settings(layer, tensors)
        seen = self._seen(layer, structure, cut.part(tensors, 0), settings)
        if not any(seen.needed):
            args, kwargs = trees.together(structure, tensors)
            return layer.forward(*args, **kwargs)
        kind = (layer.number, cut.kind(tensors), watch.kind_of(structure, tensors, layer))
        if self._update.steps >= self._next_trial.get(kind, 0):
            self._joined[kind] = try_cut(layer, structure, tensors, cut, settings)
            self._next_trial[kind] = next((each for each in _TRIALS if each > self._update.steps),
                                          sys.maxsize)

        def run_part(number: int) -> Run:
            part = [each.detach().requires_grad_() if each.requires_grad else each
                    for each in cut.part(tensors, number)]
            return Run(layer, structure, part, self._settings(layer, part))

        needs = [each.requires_grad for each in tensors]
        run = ChunkedRun(run_part, Run(layer, structure, tensors, settings), cut, needs,
                         self._joined[kind], layer.own if self._accumulate else ())
        shared = self._inputs_of(layer)
        return self._node(layer, run, [1] * (sum(needs) + len(shared)), shared,
                          seen.needed)(tensors)

    def _inputs_of(self, layer: Layer) -> Sequence[torch.Tensor]:
        """The parameters whose gradients the node hands on, where it runs in parts; those of others
        are summed in place."""
        return ()

    def _before_backward(self, call: Call) -> None:
        self._hints.wanted(call.layer.number - 1)

    def _after_backward(self, layer: Layer) -> None:
        if layer.forwards == layer.backwards:
            self._update.layer_done(layer)
            self._hints.done(layer)
