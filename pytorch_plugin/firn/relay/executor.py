"""A relay: a model's layers, whose forward methods it has taken over, and its optimizer."""

from __future__ import annotations

import contextlib
import threading
import warnings
from typing import Any, Callable, Iterator, Literal, Sequence

import torch
from torch import nn

from firn.relay import layers as layers_of, trees, watch
from firn.relay.draws import Draws, generators_of
from firn.relay.hints import Hints
from firn.relay.layers import Forward, Layer
from firn.relay.node import Call, Run
from firn.relay.state import Settings
from firn.relay.trees import Refused
from firn.relay.update import Update, check_optimizer


class Relay:
    """The part that all forms have (loop.py, split.py, automatic.py)."""

    gives_way = False  # to one that the program asks for

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: int, *,
                 layers: Sequence[nn.Module | str] | None, keep: int | Literal["auto"],
                 eager: bool, where: str = "device", host_optimizer: Any = None,
                 states: str = "pinned", accumulate: torch.dtype | None = None) -> None:
        check_optimizer(optimizer)
        for other in layers_of.relays_of(model):
            if other.gives_way and not self.gives_way:
                other.close()
        found = layers_of.find(model, layers)
        number = 0 if keep == "auto" else keep
        if not 0 <= number <= len(found):
            raise ValueError(f"firn.relay: keep={keep}: the model has {len(found)} layers")
        for layer in found:
            if isinstance(layer.module.__dict__.get("forward"), Forward):
                raise Refused(f"firn.relay: layer {layer} is in another relay: close() that first")
        watch.check_model(model, found)
        self.model, self.optimizer, self.micro_batches = model, optimizer, micro_batches
        self._layers = found
        self._keep(number)
        layers_of.share_out(model, found)
        self._here = threading.local()
        self._draws = Draws(self._say)
        self._undo = self._prepare(model)
        self._accumulate = accumulate
        self._place = where, host_optimizer, states
        try:
            self._update = self._updated_by(optimizer, found, eager)
        except BaseException:
            self._undo()
            raise
        self._hints = Hints(found, self._update)
        self._forwards = []
        for layer in found:
            forward = Forward(layer, self._enter)
            layer.module.__dict__["forward"] = forward
            self._forwards.append(forward)

    def _keep(self, number: int) -> None:
        """The graphs of so many last layers are kept."""
        for layer in self._layers:
            layer.kept = layer.number >= len(self._layers) - number

    @property
    def layers(self) -> list[str]:
        """The names of the layers that were found."""
        return [each.name for each in self._layers]

    def __repr__(self) -> str:
        when = "layer by layer" if self._update.wanted else "at the end"
        if self._update.where == "host":
            when += ", at the host"
        kept = sum(each.kept for each in self._layers)
        return (f"firn.relay of {type(self.model).__name__}: {self.micro_batches} micro-batches, "
                f"layers {', '.join(self.layers)}" +
                (f", of which the last {kept} are kept" if kept else "") +
                f"; {type(self.optimizer).__name__} {when}")

    @property
    def where(self) -> str:
        """Where updates are made: "device", "host", or "auto" until that is chosen."""
        return self._update.where

    def close(self) -> None:
        """The model and the optimizer are as before firn.relay()."""
        for forward in self._forwards:
            forward.remove()
        if self._forwards:
            self._undo()
        self._forwards = []
        self._update.close()

    def _prepare(self, model: nn.Module) -> Callable[[], None]:
        return watch.prepare(model, self._say)

    def _updated_by(self, optimizer: torch.optim.Optimizer, layers: Sequence[Layer],
                    eager: bool) -> Update:
        return _update(optimizer, layers, eager, self._say, *self._place)

    @staticmethod
    def _say(words: str) -> None:
        warnings.warn("firn.relay: " + words, RuntimeWarning, stacklevel=3)

    def _enter(self, layer: Layer, args: Any, kwargs: Any) -> Any:
        """Runs in the place of the layer's forward method."""
        raise NotImplementedError

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """A layer runs: those that it calls are parts of it."""
        self._here.in_layer = True
        try:
            yield
        finally:
            self._here.in_layer = False

    def _is_inside(self) -> bool:
        return getattr(self._here, "in_layer", False)

    def _before_backward(self, call: Call) -> None:
        raise NotImplementedError

    def _after_backward(self, layer: Layer) -> None:
        raise NotImplementedError

    def _again(self, layer: Layer, structure: Any, tensors: Sequence[torch.Tensor],
               inside: watch.Inside) -> tuple[Any, Call | None]:
        """The layer's result from a node that runs it again in the backward pass, and the call that
        has it; none where nothing needs a gradient. Its leaves are added to `inside`."""
        settings = self._settings(layer, tensors)
        seen = self._seen(layer, structure, tensors, settings)
        if not any(seen.needed):
            args, kwargs = trees.together(structure, tensors)
            return layer.forward(*args, **kwargs), None
        shared = [each for each in layer.shared if each.requires_grad]
        uses = [*seen.inputs, *(seen.parameters.get(each, 1) for each in shared)]
        run = Run(layer, structure, tensors, settings)
        call = self._node(layer, run, uses, shared, seen.needed)
        result = call(tensors)
        inside.add_leaves(layer, run.leaves)
        run.leaves = []
        return result, call

    def _node(self, layer: Layer, run: Any, uses: Sequence[int], shared: Sequence[torch.Tensor],
              needed: Sequence[bool], kind: type[Call] = Call) -> Call:
        return kind(layer, run, uses, shared, needed, self._before_backward, self._inside,
                    self._after_backward)

    @staticmethod
    def _settings(layer: Layer, tensors: Sequence[torch.Tensor]) -> Settings:
        parameters = (*layer.own[:1], *layer.shared[:1])
        return Settings(generators_of((*tensors, *parameters)))

    def _seen(self, layer: Layer, structure: Any, tensors: Sequence[torch.Tensor],
              settings: Settings) -> watch.Seen:
        """Knowledge of such a call; a new kind runs plainly once, for that alone."""
        kind = watch.kind_of(structure, tensors, layer)
        if kind not in layer.seen:
            with settings.as_they_were():
                watch.look(layer, structure, tensors, watch.Inside())
        found: watch.Seen = layer.seen[kind]
        return found


def _update(optimizer: torch.optim.Optimizer, layers: Sequence[Layer], eager: bool,
            say: watch.Say, where: str, host_optimizer: Any, states: str) -> Update:
    if where == "device":
        return Update(optimizer, layers, eager, say)
    from firn.relay.host import HostUpdate
    try:
        return HostUpdate(optimizer, layers, eager, say, where, host_optimizer, states)
    except Refused as refused:
        if where == "host":
            raise
        say(f"where='auto': updates on the device ({str(refused).removeprefix('firn.relay: ')})")
        return Update(optimizer, layers, eager, say)
