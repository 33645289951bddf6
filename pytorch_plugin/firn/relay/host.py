"""Updates at the host: the optimizer's states stay there, gradients come down, parameters go up.

A layer's gradients, as soon as they are whole, go to host memory on a stream of their own; a
thread waits for them, steps the layer's masters (twin.py), and sends the new values up. One layer
waits while another is stepped, so that the device has two layers' gradients at most, beside those
that are being computed. All else is updated in front of the user's step(), which finds no
gradients, and changes nothing; it returns when all is updated, and what follows it on the caller's
stream is behind the copies.
"""

from __future__ import annotations

import collections
import concurrent.futures
from typing import Any, Callable, NamedTuple, Sequence

import torch
from torch import nn

from firn.relay import states as in_firn
from firn.relay.layers import Layer
from firn.relay.link import Down, Link
from firn.relay.place import Place, choose
from firn.relay.proof import Known, Proof, smallest, why_no_trial
from firn.relay.subset import step_of
from firn.relay.trees import Refused
from firn.relay.twin import Make, Twin, check_hooks, check_host
from firn.relay.update import Update

STEPS = 3  # at the most, until where="auto" chooses


class _Job(NamedTuple):
    name: str
    layer: Layer | None
    future: concurrent.futures.Future[None]


class _Sent(NamedTuple):
    gradients: Down
    changed: list[torch.Tensor]     # parameters that the program wrote
    values: Down                    # of these
    others: Sequence[torch.Tensor]  # parameters
    differ: Down                    # which of these it wrote too


class HostUpdate(Update):
    """Steps the twin of an optimizer. Where `where` is "auto", one of the first steps chooses
    between this and the optimizer itself (place.py). `make`, `states`: Twin's.

    Owns a thread, hooks of the optimizer's, and its states, until close()."""

    def __init__(self, optimizer: torch.optim.Optimizer, layers: Sequence[Layer], eager: bool,
                 say: Callable[[str], None], where: str, make: Make | None,
                 states: str = "pinned") -> None:
        self._make, self._states, self._place = make, states, Place.undecided
        device = check_host(optimizer)
        super().__init__(optimizer, layers, eager, say)
        self._link = Link(device, say)
        self._twin: Twin | None = None
        self._gradients: list[tuple[nn.Parameter, torch.Tensor | None]] = []  # within a step
        self._tried = False      # so that this is known:
        self._separable = False  # a step of one layer is as in the whole step
        self._jobs: collections.deque[_Job] = collections.deque()
        self._worker = concurrent.futures.ThreadPoolExecutor(1, "firn.relay host")
        if where == "host":
            try:
                self._move_to_host()
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """The optimizer has its states again, on its parameters' device."""
        super().close()
        twin, self._twin = self._twin, None
        try:
            self._settle()
        finally:
            try:
                if twin is not None:
                    self._give_back(twin)
            finally:
                self._worker.shutdown()

    def _give_back(self, twin: Twin) -> None:
        for each in self._host_hooks:
            each.remove()
        vars(self.optimizer).update(self._scaling)
        vars(self.optimizer).pop("__getstate__", None)
        twin.give_back()

    def abandon(self) -> None:
        self._gradients = []
        jobs, self._jobs = self._jobs, collections.deque()
        self._cancel(jobs)
        self._link.join()

    @property
    def where(self) -> str:
        return self._place.value

    def _move_to_host(self) -> None:
        device = check_host(self.optimizer)
        if self._states == "firn":
            in_firn.check(self.optimizer, device)
        twin = Twin(self.optimizer, self._link, self._make, states=self._states)
        twin.take_over()
        self._twin, self._place = twin, Place.host
        # (A fused optimizer would take the scale into its own kernels: GradScaler does it itself.)
        scales = "_step_supports_amp_scaling"
        self._scaling = {name: value for name, value in vars(self.optimizer).items()
                         if name == scales}
        vars(self.optimizer).update(dict.fromkeys(self._scaling, False))
        self._host_hooks = [
            self.optimizer.register_state_dict_post_hook(self._save),
            self.optimizer.register_load_state_dict_pre_hook(self._load),
            self.optimizer.register_load_state_dict_post_hook(lambda _: twin.take_over())]
        vars(self.optimizer)["__getstate__"] = self._as_a_value

    def _as_a_value(self) -> dict[str, Any]:
        """What a copy of the optimizer, or a pickle of it, has: the states that close() would give
        back."""
        self._settle()
        value: dict[str, Any] = type(self.optimizer).__getstate__(self.optimizer)
        if self._twin is not None and "state" in value:
            others = {key: each for key, each in value["state"].items() if each}
            value = {**value, "state": collections.defaultdict(
                dict, {**others, **self._twin.given()})}
        return value

    def _save(self, _: Any, saved: dict[str, Any]) -> None:
        self._settle()
        if self._twin is not None:
            saved["state"] = self._twin.saved_states()

    def _load(self, _: Any, saved: dict[str, Any]) -> dict[str, Any]:
        self._settle()
        if self._twin is None:
            return saved
        self._twin.load(saved)
        return {**saved, "state": {}}

    def _before(self, *call: Any) -> None:
        if self._place is Place.undecided and not self._inner and self._with_gradients():
            self._choose()
        if self._twin is None:
            super()._before(*call)
            return
        self._check_call(*call)
        self._twin.check_groups()
        self._twin.check_states()
        self._check_updated()
        if self.wanted and not self.eager:
            self._check_left()
        if not self._tried:
            self._try(self._twin)
        self._gradients = [(each, each.grad) for each in self._with_gradients()]
        if self._separable:
            for layer in reversed(self._layers):
                self._send(str(layer), layer, self._with_gradients(set(layer.own)))
            self._send("the parameters outside of layers", None, self._with_gradients())
        else:
            self._send("all parameters", None, self._with_gradients())
        self._settle()

    def _after(self, *call: Any) -> None:
        """(The user's step has found no gradients; the program may look at them behind it.)"""
        if not self._inner:
            given, self._gradients = self._gradients, []
            for parameter, gradient in given:
                if parameter.grad is None:
                    parameter.grad = gradient
        super()._after(*call)

    def _choose(self) -> None:
        if hasattr(self.optimizer, "found_inf"):
            self._place = Place.device
            self._say("where='auto': updates on the device: a scaler leaves the scale to the fused "
                      "optimizer (where='host' takes it before)")
            return
        small = smallest(self.optimizer, self._layers) or self._with_gradients()
        try:
            self._place, words = choose(self.optimizer, small, self._link, self._make)
            if self._place is Place.undecided and self.steps + 1 >= STEPS:
                self._place, words = Place.device, ("where='auto': updates on the device: Firn "
                                                    f"has moved little in {STEPS} steps")
            if words:
                self._say(words)
            if self._place is Place.host:
                self._move_to_host()
        except Refused as why:
            self._place = Place.device
            self._say("where='auto': updates on the device "
                      f"({str(why).removeprefix('firn.relay: ')})")

    def _try(self, twin: Twin) -> None:
        """Whether the class can be stepped by parts, on the masters of the smallest layer. Refused
        is one that counts steps beside its parameters' states: the host's steps would count too."""
        parameters = smallest(self.optimizer, self._layers)
        if not parameters:
            self._prove_nothing()
            return
        if twin.in_firn:
            self._proof = Known()
            return
        twin.copy_groups()
        sent = self._down(twin, parameters)
        self._read(twin, sent)
        masters = twin.put_gradients(parameters, sent.gradients.wait())
        try:
            why = why_no_trial(twin.optimizer)
            if why is None:
                self._proof = Proof(twin.optimizer, masters,
                                    lambda wanted: step_of(twin.optimizer, wanted))
                why = self._proof.why
        finally:
            for each in masters:
                each.grad = None
        if why is not None:
            self._proof = None
            raise Refused(f"firn.relay: {type(self.optimizer).__name__} cannot step at the host: "
                          f"{why}; where='device'")

    def _proven(self, why: str | None) -> None:
        if self._twin is not None:
            self._tried, self._separable = True, why is None
            why = why or self._others()
        if self.wanted:
            super()._proven(why)

    def _check_call(self, _: Any, arguments: Sequence[Any], options: dict[str, Any]) -> None:
        check_hooks()
        if any(each is not None for each in (*arguments[1:], options.get("closure"))):
            raise Refused("firn.relay: step(closure) with updates at the host: they are made "
                          "before the closure would run; where='device', or step() without one")
        if next(reversed(self.optimizer._optimizer_step_pre_hooks)) != self._hooks[0].id:
            raise Refused("firn.relay: the optimizer got another hook before its steps, which "
                          "would find no gradients: register it before firn.relay() is called")

    def _with_gradients(self, wanted: set[nn.Parameter] | None = None) -> list[nn.Parameter]:
        return [each for group in self.optimizer.param_groups for each in group["params"]
                if each.grad is not None and (wanted is None or each in wanted)]

    def _step_layer(self, layer: Layer, wanted: set[nn.Parameter]) -> None:
        if self._twin is None:
            super()._step_layer(layer, wanted)
        else:
            self._send(str(layer), layer, self._known(wanted))

    def _down(self, twin: Twin, parameters: Sequence[nn.Parameter]) -> _Sent:
        """Begins to copy the gradients of `parameters`, and the values that the program changed."""
        gradients = []
        for each in parameters:
            assert each.grad is not None
            if each.grad.layout is not torch.strided:
                raise Refused(f"firn.relay: a parameter (shape {tuple(each.shape)}) has a sparse "
                              "gradient, which cannot be updated at the host: sparse=False, or "
                              "where='device'")
            if each.device != self._link.device:
                raise Refused(f"firn.relay: a parameter (shape {tuple(each.shape)}) has moved to "
                              f"{each.device}: close() the relay and make a new one")
            gradients.append(each.grad)
        changed = twin.changed(parameters)
        others = [each for each in parameters if all(each is not one for one in changed)]
        differ = twin.differ(others)
        return _Sent(self._link.down(gradients, [twin.of(each) for each in parameters]), changed,
                     self._link.down([each.detach() for each in changed],
                                     [twin.of(each) for each in changed]), others, differ)

    def _read(self, twin: Twin, sent: _Sent) -> None:
        """What the program wrote is in the masters when this returns."""
        twin.read(sent.changed, sent.values.wait())
        for differ in sent.differ.wait():
            written = [each for each, other in zip(sent.others, differ.tolist()) if other]
            twin.read(written, self._link.fetch(written))

    def _send(self, name: str, layer: Layer | None, parameters: Sequence[nn.Parameter]) -> None:
        """Begins an update, and drops the gradients."""
        twin = self._twin
        if not parameters or twin is None:
            return
        twin.check_groups()
        twin.check_states()
        while len(self._jobs) > 1:
            self._collect()
        sent = self._down(twin, parameters)
        for each in parameters:
            each.grad = None
        before = self._jobs[-1].future if self._jobs else None

        def update() -> None:
            if before is not None and before.exception() is not None:
                raise concurrent.futures.CancelledError
            self._read(twin, sent)
            twin.step(parameters, sent.gradients.wait())
        self._jobs.append(_Job(name, layer, self._worker.submit(update)))

    def _settle(self) -> None:
        """All updates are made, and their results are in front of the caller's stream."""
        while self._jobs:
            self._collect()
        self._link.join()

    def _collect(self) -> None:
        """Waits for the oldest update; raises what it raised, and drops those behind it."""
        job = self._jobs.popleft()
        try:
            job.future.result()
        except BaseException as error:
            failed = job.future.done() and job.future.exception() is error
            behind, self._jobs = self._jobs, collections.deque()
            self._cancel([job, *behind])
            if failed:
                words = f"the update of {job.name} at the host failed"
                if hasattr(error, "add_note"):
                    error.add_note("firn.relay: " + words)
                else:
                    self._say(words)
            raise

    @staticmethod
    def _cancel(jobs: Sequence[_Job]) -> None:
        for job in jobs:
            job.future.cancel()
        concurrent.futures.wait([each.future for each in jobs])
        for job in jobs:
            if job.layer is not None and (job.future.cancelled() or job.future.exception()):
                job.layer.updated = False
