"""Where a program that knows nothing of the relay gets one: FIRN_RELAY=8, `firn run --relay 8`.

Two doors. Each new optimizer is noted (torch.optim.Optimizer.__init__), for the program's modules
are known by whose parameters an optimizer has. Then torch's hook in front of all modules' calls
(register_module_forward_pre_hook) waits for the outermost module in train() mode that has some of
them, and gives it a relay. The hook is gone when all of the optimizer's parameters have been met,
or when it has made its first step. One line on standard error says what was found, or why not.
A third one leads out: a model that torch.jit.script compiles is given back.

Nothing is raised here: the program goes on plainly.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import Any, Callable, Sequence

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from firn.relay import layers as layers_of
from firn.relay.automatic import AutomaticRelay, is_plain
from firn.relay.groups import Groups
from firn.relay.trees import Refused


class _Waiting:
    """An optimizer whose modules are looked for."""

    def __init__(self, optimizer: torch.optim.Optimizer, stepped: Callable[..., None]) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.name = type(optimizer).__name__
        self.met: set[int] = set()    # parameters in modules so far, by id()
        self.without: list[str] = []  # classes of modules that have no layers
        self.settled = False          # a line was said of one of its modules
        # Those of models that it updates, which count its steps.
        self.relays: weakref.WeakSet[AutomaticRelay] = weakref.WeakSet()
        optimizer.register_step_post_hook(stepped)

    def parameters(self) -> list[nn.Parameter]:
        optimizer = self.optimizer()
        return [] if optimizer is None else [
            each for group in optimizer.param_groups for each in group["params"]]


class Doors:
    """Open from __init__ to close(). Locks: its own, while a module is looked at."""

    def __init__(self, micro_batches: int) -> None:
        self._micro_batches = micro_batches
        self._waiting: list[_Waiting] = []
        self._known: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._relays: weakref.WeakSet[AutomaticRelay] = weakref.WeakSet()
        self._said: set[str] = set()
        self._lock = threading.RLock()
        self._groups = Groups(self.say)
        self._hook: Any = None
        self._init = init = torch.optim.Optimizer.__init__

        @functools.wraps(init)
        def made(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self._quietly(self._made, optimizer)

        self._script = torch.jit.script
        script: Callable[..., Any] = torch.jit.script

        @functools.wraps(script)
        def compiled(obj: Any, *args: Any, _frames_up: int = 0, **kwargs: Any) -> Any:
            self._quietly(self._compiles, obj)
            # (It looks names up where it is called: this is one frame more.)
            return script(obj, *args, _frames_up=_frames_up + 1, **kwargs)

        self._patches = made, compiled
        torch.optim.Optimizer.__init__ = made  # type: ignore[method-assign, assignment]
        torch.jit.script = compiled

    def shut(self) -> None:
        """Gives no relay from now on."""
        self._groups.close()
        made, compiled = self._patches
        if torch.optim.Optimizer.__init__ is made:
            torch.optim.Optimizer.__init__ = self._init  # type: ignore[method-assign]
        if torch.jit.script is compiled:
            torch.jit.script = self._script
        self._waiting = []
        self._rest()

    def close(self) -> None:
        """As shut(), and gives all models back."""
        self.shut()
        for relay in self._relays:
            relay.close()

    def say(self, words: str) -> None:
        """Once."""
        if words in self._said:
            return
        self._said.add(words)
        try:
            print("firn: relay: " + words, file=sys.stderr, flush=True)
        except (OSError, ValueError, AttributeError):
            pass  # no standard error is left

    def _quietly(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            with self._lock:
                call(*arguments)
        except Exception as error:
            self._waiting = []
            self._rest()
            self.say(f"off: {type(error).__name__}: {error}")

    def _compiles(self, obj: Any) -> None:
        """torch.jit.script is about to read the source of the forward methods."""
        if isinstance(obj, nn.Module):
            for relay in layers_of.relays_of(obj):
                if relay.gives_way:
                    relay.refuse(Refused("torch.jit.script compiles its forward methods"))

    def _made(self, optimizer: torch.optim.Optimizer) -> None:
        waiting: _Waiting

        def stepped(*_: Any) -> None:
            self._quietly(self._stepped, waiting)

        stepped.of_firn = True  # type: ignore[attr-defined]
        waiting = _Waiting(optimizer, stepped)
        self._waiting.append(waiting)
        if self._hook is None:
            self._hook = register_module_forward_pre_hook(self._called)

    def _stepped(self, waiting: _Waiting) -> None:
        if waiting in self._waiting:  # (no later step looks at models)
            self._first_step(waiting)
        for relay in waiting.relays:
            relay.stepped()

    def _first_step(self, waiting: _Waiting) -> None:
        """It is over: what the optimizer has was called by now."""
        mine = set(waiting.parameters())
        waiting.relays.update(  # with those that another optimizer brought
            relay for relay in self._relays
            if any(each in mine for each in relay.model.parameters()))
        if not waiting.settled and not waiting.relays:
            self.say(f"off for {waiting.name}: " + (
                _without(waiting) if waiting.without else
                "it has stepped, and no module in train() mode that has its parameters was called "
                "with gradients (what torch.compile traces is not seen)"))
        self._end(waiting)

    def _end(self, waiting: _Waiting) -> None:
        """(The hook stays: it may be what runs, among others.)"""
        self._waiting = [each for each in self._waiting if each is not waiting]
        self._rest()

    def _rest(self) -> None:
        if self._hook is not None and not self._waiting:
            self._hook.remove()
            self._hook = None

    def _called(self, module: nn.Module, _: Any) -> None:
        """Before a module's forward method."""
        if is_plain() and module.training and torch.is_grad_enabled():
            self._quietly(self._look_at, module)

    def _look_at(self, module: nn.Module) -> None:
        if module in self._known:
            return
        for each in self._waiting:
            if each.optimizer() is None:
                self._end(each)
        own = set(module.parameters())
        found = [(len(own.intersection(each.parameters())), each) for each in self._waiting]
        concerned = [each for count, each in found if count]
        if not concerned:
            return
        main = max(found, key=lambda each: each[0])[1]
        optimizer = main.optimizer()
        if optimizer is not None:
            said = self._relay(module, optimizer, concerned)
            for each in concerned:
                each.settled = each.settled or said
                if not said:
                    each.without.append(type(module).__name__)
        self._known.update(module.modules())
        for each in concerned:
            each.met.update(map(id, own))
            if all(id(parameter) in each.met for parameter in each.parameters()):
                if not each.settled:
                    self.say(f"off for {each.name}: {_without(each)}")
                self._end(each)

    def _relay(self, module: nn.Module, optimizer: torch.optim.Optimizer,
               concerned: Sequence[_Waiting]) -> bool:
        """Gives the module a relay, which counts the steps of all that are concerned; False, where
        it has no layers."""
        owners = layers_of.relays_of(module)
        if any(not isinstance(each, AutomaticRelay) for each in owners):
            return True  # the program has its own
        for each in concerned:
            each.relays.update(owners)
        inside = {layer for owner in owners for layer in owner.modules}
        layers = [layer for layer in layers_of.repeated(module) if layer not in inside]
        name = type(module).__name__
        if not layers:
            return bool(inside)
        try:
            relay = AutomaticRelay(module, optimizer, self._micro_batches, layers=layers,
                                   say=self.say)
        except Refused as why:
            self.say(f"off for {name}: {str(why).removeprefix('firn.relay: ')}")
            return True
        self._relays.add(relay)
        for each in concerned:
            each.relays.add(relay)
        relay.say_what_was_found(type(optimizer).__name__)
        relay.begin()
        self._groups.open()
        return True


def _without(waiting: _Waiting) -> str:
    names = ", ".join(dict.fromkeys(waiting.without))
    return f"{names} has no ModuleList or Sequential of modules that repeat"
