"""The split form by itself: a relay that a program knows nothing of (FIRN_RELAY, `firn run
--relay`). It finds out before it acts, says why it leaves a model alone, and raises nothing.

Until the optimizer's first step, and again in the first step with a new kind of call, layers run
plainly and are looked at (learning.py). The optimizer steps when the program says so.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import Any, Callable, Hashable, Iterator, Sequence

import torch
from torch import nn

from firn.relay import learning, trees, watch
from firn.relay.calls import FreeCall
from firn.relay.layers import Forward, Layer
from firn.relay.node import Call
from firn.relay.split import SplitRelay
from firn.relay.trees import Refused
from firn.relay.turns import Turn

Say = Callable[[str], None]


class Steps:
    """The number of steps that optimizers with the model's parameters have made, in the place of an
    Update: doors.py counts them, for a program may replace its optimizer."""

    wanted = eager = False
    where = "device"

    def __init__(self) -> None:
        self.steps = 0

    def updated(self) -> list[Layer]:
        return []

    def layer_done(self, layer: Layer) -> None:
        pass

    def close(self) -> None:
        pass


class AutomaticRelay(SplitRelay):
    """Of `model`, whose parameters `optimizer` has; that is not kept alive. `say` gets lines."""

    gives_way = True

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: int, *,
                 layers: Sequence[nn.Module], say: Say) -> None:
        self._say_line = say
        super().__init__(model, optimizer, micro_batches, eager=False, keep=0, layers=layers)
        self.optimizer = weakref.proxy(optimizer)
        self._inner = {layer: ([each for each in layer.module.modules()
                                if each is not layer.module], list(layer.module.parameters()))
                       for layer in self._layers}
        self._known_since: dict[Hashable, int] = {}  # kinds of calls: the step of the first one
        self._step = 0
        whole = Forward(Layer("", model, -1), self._forward)
        model.__dict__["forward"] = whole
        self._forwards.append(whole)
        # For the forward pass that has begun already, and does not come through _forward().
        self._undo_pause: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return (f"firn.relay of {type(self.model).__name__}, by itself: {self.micro_batches} "
                f"micro-batches, layers {', '.join(self.layers)}")

    @property
    def modules(self) -> list[nn.Module]:
        return [each.module for each in self._layers]

    def say_what_was_found(self, optimizer: str) -> None:
        counts: dict[str, int] = {}
        for name in self.layers:
            path = name.rpartition(".")[0]
            owner, _, attribute = path.rpartition(".")
            kind = type(self.model.get_submodule(owner)).__name__
            path = f"{kind}.{attribute}" if attribute else kind
            counts[path] = counts.get(path, 0) + 1
        layers = " and ".join(f"{count} layers of {path}" for path, count in counts.items())
        parts = f"{self.micro_batches} micro-batch{'es' if self.micro_batches > 1 else ''}"
        beside = [what for what, found in (
            ("gradient checkpointing", watch.checkpointed(self.model)),
            ("use_cache", watch.caching(self.model))) if found]
        off = f"; {' and '.join(beside)} off while it trains" if beside else ""
        self._say_line(f"{layers}, {parts}, from {optimizer}'s second step on{off}")

    def refuse(self, why: Refused) -> None:
        """Gives the model back, and says why."""
        if self._forwards:
            self.close()
            text = str(why).removeprefix("firn.relay: ")
            self._say_line(f"off for {type(self.model).__name__}: {text}")

    def begin(self) -> None:
        """The model's forward method is about to run, and is not this one's yet."""
        self._undo_pause = watch.pause(self.model)

    def close(self) -> None:
        self._resume()
        super().close()

    def _resume(self) -> None:
        undo, self._undo_pause = self._undo_pause, None
        if undo is not None:
            undo()

    def _prepare(self, model: nn.Module) -> Callable[[], None]:
        return lambda: None  # (_forward does, for as long as it runs)

    def _updated_by(self, optimizer: torch.optim.Optimizer, layers: Sequence[Layer],
                    eager: bool) -> Any:
        return Steps()

    def stepped(self) -> None:
        """An optimizer has updated the model."""
        self._update.steps += 1

    @property
    def has_learned(self) -> bool:
        """Layers run as nodes from now on, but in calls of new kinds."""
        return bool(self._forwards) and self._update.steps > 0

    @contextlib.contextmanager
    def within(self, turn: Turn, before: Sequence[Turn]) -> Iterator[None]:
        """This thread is a turn (groups.py), behind those in `before`: its layers are seams."""
        self._here.turn, self._here.before = turn, before
        try:
            yield
        finally:
            self._here.turn = None
            turn.forward_ended = True

    def begins_backward(self) -> None:
        """This thread is about to."""
        turn = self._turn()
        if turn is not None:
            turn.end_any_forward(self._here.before)

    def _turn(self) -> Turn | None:
        return getattr(self._here, "turn", None)

    def _forward(self, model: Layer, args: Any, kwargs: Any) -> Any:
        """Runs in the place of the model's forward method."""
        if self._undo_pause is not None:
            self._resume()
        if not is_plain() or not self._forwards or not torch.is_grad_enabled():
            return model.forward(*args, **kwargs)
        if not self.model.training:
            with self._inside():  # (the layers are parts of a forward pass that is left alone)
                return model.forward(*args, **kwargs)
        if _in_ddp():
            self.refuse(Refused("it is in a DistributedDataParallel, which counts backward passes: "
                                "not yet supported"))
        if self._turn() is not None:
            return model.forward(*args, **kwargs)  # (nothing is beside the whole group)
        with self._nothing_beside():
            return model.forward(*args, **kwargs)

    @contextlib.contextmanager
    def _nothing_beside(self) -> Iterator[None]:
        """Without what would run layers again, or keep state in them, beside the relay."""
        undo = watch.pause(self.model) if self._forwards else None
        try:
            yield
        finally:
            if undo is not None:
                undo()

    def _enter(self, layer: Layer, args: Any, kwargs: Any) -> Any:
        if not is_plain() or not torch.is_grad_enabled() or not self._forwards or \
                self._is_inside():
            return layer.forward(*args, **kwargs)
        turn = self._turn()
        if turn is not None:
            turn.seam()
            if not self._forwards:  # (another one has given the model back)
                return layer.forward(*args, **kwargs)
        tensors: list[torch.Tensor] = []
        try:
            learning.check_inside(layer, *self._inner[layer])
            structure = trees.apart((args, kwargs), tensors, f"layer {layer} is given")
            learning.check_arguments(layer, tensors)
        except Refused as why:
            self.refuse(why)
            return layer.forward(*args, **kwargs)
        self._begin_step()
        kind = (layer.number, watch.kind_of(structure, tensors, layer))
        since = self._known_since.setdefault(kind, self._update.steps)
        settings = self._settings(layer, tensors)
        if since == self._update.steps:
            return self._learn(layer, structure, tensors, settings)
        try:
            with self._inside():
                self._hints.wanted(layer.number + 1)
                return self._run(layer, structure, tensors)
        except Refused as why:
            self.refuse(why)
        except Exception as error:
            settings.put_back()
            value = layer.forward(*args, **kwargs)  # (which raises it, where it is the program's)
            self.refuse(Refused(f"layer {layer} fails in parts: {type(error).__name__}: {error}"))
            return value
        settings.put_back()
        return layer.forward(*args, **kwargs)

    def _begin_step(self) -> None:
        if self._step != self._update.steps:
            self._step = self._update.steps
            for layer in self._layers:
                layer.begin_step()

    def _learn(self, layer: Layer, structure: Any, tensors: Sequence[torch.Tensor],
               settings: Any) -> Any:
        with self._inside():
            if watch.kind_of(structure, tensors, layer) in layer.seen:
                args, kwargs = trees.together(structure, tensors)
                value = layer.forward(*args, **kwargs)
            else:
                for parameter in layer.trainable():
                    layer.share(parameter)
                value = learning.first_call(layer, structure, tensors, settings, self.refuse)
            if self._forwards:
                self._watch(layer, structure, tensors, settings, value)
        return value

    def _watch(self, layer: Layer, structure: Any, tensors: Sequence[torch.Tensor], settings: Any,
               value: Any) -> None:
        result: list[torch.Tensor] = []
        try:
            trees.apart(value, result, f"layer {layer} returned")
            if settings.casts and layer.forwards != layer.backwards and self._turn() is None:
                raise Refused(f"layer {layer} is called twice under autocast, which casts its "
                              "weights once, and in each of its runs")
        except Refused as why:
            self.refuse(why)
            return
        layer.forwards += 1
        turn, call = self._turn(), object()
        if turn is not None:
            turn.enter(layer.number)
            turn.made(call)

        def begun() -> None:
            self._resume()
            if turn is not None and turn is self._turn():
                turn.reach(call, self._here.before)

        learning.watch_backward(layer, structure, tensors, settings, result,
                                self.micro_batches == 1, begun, self.refuse)

    def _inputs_of(self, layer: Layer) -> Sequence[torch.Tensor]:
        return [each for each in layer.shared if each.requires_grad]

    def _node(self, layer: Layer, run: Any, uses: Sequence[int], shared: Sequence[torch.Tensor],
              needed: Sequence[bool], kind: type[Call] = FreeCall) -> Call:
        call = super()._node(layer, run, uses, shared, needed, kind)
        turn = self._turn()
        if turn is not None:
            turn.enter(layer.number)
            turn.made(call)
        return call

    def _before_backward(self, call: Call) -> None:
        super()._before_backward(call)
        turn = self._turn()
        if turn is not None:
            turn.reach(call, self._here.before)


def is_plain() -> bool:
    """No compiler, tracer, functorch's transform or graph's capture is at work: the program itself
    runs."""
    return not (torch.compiler.is_compiling() or torch._C._is_tracing() or
                torch.fx._symbolic_trace._is_fx_tracing_flag or
                torch._C._functorch.peek_interpreter_stack() is not None or
                (torch.cuda.is_initialized() and  # type: ignore[no-untyped-call]
                 torch.cuda.is_current_stream_capturing()))


def _in_ddp() -> bool:
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    return getattr(getattr(parallel, "DistributedDataParallel", None), "_active_ddp_module",
                   None) is not None
