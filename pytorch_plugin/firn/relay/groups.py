"""The micro-batches that transformers' Trainer accumulates, in one turn of each layer: L2L's order
in a script that knows nothing of it.

The Trainer fetches all batches of an optimizer's step (get_batch_samples), and then calls its
training_step with one after the other; nothing that it calls in between sees the model. So the
first of these calls runs them all, each in a thread (baton.py), with the relay's layers as seams,
and the others get what is there by then. Gradients are summed in the loop's order, draws of random
numbers are the loop's (draws.py): bits stay.

A Trainer whose loop, training_step or callbacks are the program's own is left alone, since they may
look at the model between two micro-batches; so is one whose training_step changes its attributes or
the model's, which the next micro-batch would find. That is watched in the first group that it sees,
which runs plainly.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import sys
import weakref
from collections.abc import Mapping
from typing import Any, Callable, Iterator, Sequence

import torch
from torch import nn

import firn
from firn.relay import layers as layers_of, watch
from firn.relay.attributes import Attributes
from firn.relay.automatic import AutomaticRelay, is_plain
from firn.relay.baton import Baton
from firn.relay.draws import Draws, generators_of, kind_of
from firn.relay.state import Randomness, ThreadState
from firn.relay.turns import Places, Turn

# Of the Trainer's class: a subclass that has its own may do something between micro-batches.
_ITS_OWN = ("get_batch_samples", "training_step", "_inner_training_loop", "_run_epoch")

Say = Callable[[str], None]
Step = Callable[..., torch.Tensor]


class Groups:
    """Watches Trainers from open() to close()."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._known: weakref.WeakKeyDictionary[Any, _Trainer] = weakref.WeakKeyDictionary()
        self._patched: tuple[Any, Any, Any] | None = None  # class, its function, this one

    def open(self) -> None:
        """Where transformers' Trainer is in use, and fetches batches in groups."""
        kind = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
        fetch = getattr(kind, "get_batch_samples", None)
        if self._patched is not None or fetch is None:
            return

        @functools.wraps(fetch)
        def fetched(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(vars(trainer).get("training_step"), _Group):
                del trainer.training_step  # (the group before was not trained with to its end)
            found = fetch(trainer, *args, **kwargs)
            if type(found) is tuple and found and type(found[0]) is list and len(found[0]) > 1:
                self._begin(kind, trainer, found[0])
            return found

        self._patched = kind, fetch, fetched
        kind.get_batch_samples = fetched  # type: ignore[union-attr]

    def close(self) -> None:
        patched, self._patched = self._patched, None
        if patched is not None and patched[0].get_batch_samples is patched[2]:
            patched[0].get_batch_samples = patched[1]

    def _begin(self, kind: Any, trainer: Any, batches: list[Any]) -> None:
        if "training_step" in vars(trainer) or not pays():
            return
        if trainer not in self._known:
            self._known[trainer] = _Trainer(self._say, _why_not(kind, trainer))
        known = self._known[trainer]
        if known.why is None:
            trainer.training_step = _Group(trainer, known, batches)


def pays() -> bool:
    """What is read once for a group, rather than once for each micro-batch, is what Firn moves."""
    return firn.enabled()


def _why_not(kind: Any, trainer: Any) -> str | None:
    own = [name for name in _ITS_OWN
           if getattr(type(trainer), name, None) is not getattr(kind, name, None)]
    if own:
        return f"{type(trainer).__name__} has a {own[0]} of its own"
    callback = getattr(sys.modules["transformers.trainer"], "TrainerCallback", None)
    for each in trainer.callback_handler.callbacks:
        if getattr(type(each), "on_substep_end", None) is not \
                getattr(callback, "on_substep_end", None):
            return f"{type(each).__name__} has an on_substep_end"
    return None


class _Trainer:
    """What is known of one Trainer."""

    def __init__(self, say: Say, why: str | None) -> None:
        self.why: str | None = None  # its micro-batches run one by one
        self.watched = False         # what a call of its training_step changes
        self.joined = False
        self.draws = Draws(say)
        self.drew = False
        self._say = say
        if why is not None:
            self.leave_alone(why)

    def say_that_it_joins(self, count: int) -> None:
        if not self.joined:
            self.joined = True
            self._say(f"the Trainer's micro-batches, {count} a step, take turns at each layer")

    def leave_alone(self, why: str) -> None:
        if self.why is None:
            self.why = why
            self._say(f"the Trainer's micro-batches run one by one: {why}")


class _Group:
    """In the place of a Trainer's training_step, for `batches`, which the Trainer is about to give
    to it in this order."""

    def __init__(self, trainer: Any, known: _Trainer, batches: list[Any]) -> None:
        self._trainer, self._known = weakref.ref(trainer), known
        self._batches, self._next = list(batches), 0
        self._results: list[torch.Tensor] = []
        self._others: tuple[Any, ...] = ()  # the other arguments

    def __call__(self, model: nn.Module, inputs: Any, *others: Any) -> torch.Tensor:
        trainer = self._trainer()
        assert trainer is not None
        step: Step = functools.partial(type(trainer).training_step, trainer)
        number, self._next = self._next, self._next + 1
        if self._next == len(self._batches):
            trainer.__dict__.pop("training_step", None)
        if number == 0 and self._joins(trainer, model, inputs):
            self._others = model, *others
            self._join(step, trainer.accelerator, model, others)
        if self._results:
            if number >= len(self._results) or inputs is not self._batches[number] or \
                    len(others) != len(self._others) - 1 or \
                    any(one is not other for one, other in zip((model, *others), self._others)):
                raise RuntimeError(
                    "firn: relay: the Trainer has fetched other batches than it trains with; their "
                    "gradients are there already (FIRN_RELAY=0 runs the program plainly)")
            return self._results[number]
        return self._plainly(trainer, step, model, inputs, others)

    def _joins(self, trainer: Any, model: nn.Module, inputs: Any) -> bool:
        known, control = self._known, trainer.control
        relay = _relay_of(model)
        if relay is None or not relay.has_learned or known.why is not None or not known.watched:
            return False
        if inputs is not self._batches[0] or not torch.is_grad_enabled() or not is_plain() or \
                control.should_training_stop or control.should_epoch_stop:
            return False
        kinds = [_kind(each) for each in self._batches]
        return None not in kinds and (not known.drew or known.draws.know(kinds))

    def _join(self, step: Step, accelerator: Any, model: nn.Module,
              others: Sequence[Any]) -> None:
        relay = _relay_of(model)
        assert relay is not None
        draws, count = self._known.draws, len(self._batches)
        self._known.say_that_it_joins(count)
        results: list[torch.Tensor] = [torch.empty(0)] * count
        baton, places, state = Baton(count), Places(), ThreadState()
        turns = [Turn(number, baton, draws, places) for number in range(count)]
        draws.begin(generators_of(model.parameters()), list(map(_kind, self._batches)))

        def body(number: int) -> None:
            with state.put(), relay.within(turns[number], turns[:number]):
                draws.enter(number)
                results[number] = step(model, self._batches[number], *others)
                draws.leave(number)

        undo = watch.pause(relay.model)
        try:
            with _before(accelerator, "backward", relay.begins_backward):
                baton.run(body)
        finally:
            draws.end()
            undo()
        self._results = results

    def _plainly(self, trainer: Any, step: Step, model: nn.Module, inputs: Any,
                 others: Sequence[Any]) -> torch.Tensor:
        """As the Trainer does, and watched: what a call draws, and what it leaves changed."""
        known, kind = self._known, _kind(inputs)
        generators = generators_of(model.parameters())
        # (The first call may make what later ones only use.)
        watched: list[Attributes | _Own] = [Attributes(model), _Own(trainer)] \
            if not known.watched and self._next > 1 else []
        before = [each.get_offset() for each in generators]
        host = Randomness(()), _numpys()
        loss = step(model, inputs, *others)
        drawn = [each.get_offset() - begin for each, begin in zip(generators, before)]
        known.drew = known.drew or any(drawn)
        if kind is not None:
            known.draws.learn(kind, drawn)
        if host[0].has_moved() or _numpys() != host[1]:
            known.leave_alone("training_step draws random numbers of the CPU's, Python's or "
                              "numpy's generator")
        for each in watched:
            known.watched = True
            for name in each.changed()[:1]:
                known.leave_alone(f"training_step changes {name}")
        return loss


@contextlib.contextmanager
def _before(holder: Any, name: str, call: Callable[[], None]) -> Iterator[None]:
    """Each call of the holder's method `name` begins with call()."""
    had, method = vars(holder).get(name), getattr(holder, name)

    def both(*args: Any, **kwargs: Any) -> Any:
        call()
        return method(*args, **kwargs)

    vars(holder)[name] = both
    try:
        yield
    finally:
        if had is None:
            del vars(holder)[name]
        else:
            vars(holder)[name] = had


class _Own:
    """A Trainer's attributes, as of now."""

    def __init__(self, trainer: Any) -> None:
        self._of, self._before = trainer, dict(vars(trainer))

    def changed(self) -> list[str]:
        now = vars(self._of)
        return [f"{name!r} of the Trainer" for name in {**self._before, **now}
                if name not in now or name not in self._before
                or now[name] is not self._before[name]]


def _relay_of(model: nn.Module) -> AutomaticRelay | None:
    found = layers_of.relays_of(model)
    return found[0] if len(found) == 1 and isinstance(found[0], AutomaticRelay) else None


def _kind(inputs: Any) -> Any:
    """None: not known."""
    return kind_of(dict(inputs)) if isinstance(inputs, Mapping) else None


def _numpys() -> bytes:
    numpy = sys.modules.get("numpy")
    return b"" if numpy is None else pickle.dumps(numpy.random.get_state())
