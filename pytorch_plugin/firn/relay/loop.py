"""The loop form: relay.step(compute, parts), a step over micro-batches, each in a thread that hands
the baton on at each layer."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import nn

from firn.relay import layers as layers_of, trees, watch
from firn.relay.attributes import Attributes
from firn.relay.baton import Baton
from firn.relay.draws import Draws, generators_of, kind_of
from firn.relay.executor import Relay
from firn.relay.keep import Keep
from firn.relay.layers import Layer
from firn.relay.node import Call
from firn.relay.state import Randomness, ThreadState
from firn.relay.sums import Sums
from firn.relay.trees import Refused
from firn.relay.turns import Places, Turn


class LoopRelay(Relay):
    """gradient_norm: the last step's, before it was clipped, where `clip` is given."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: int, *,
                 clip: float | None, scaler: Any, eager: bool, **options: Any) -> None:
        super().__init__(model, optimizer, micro_batches,
                         eager=eager and clip is None and scaler is None, **options)
        self.gradient_norm: torch.Tensor | None = None
        self._clip, self._scaler = clip, scaler
        self._learned = False
        self._sums = Sums() if self._accumulate else None
        self._kept: list[nn.Parameter] = []  # of kept layers alone
        self._places = Places()
        self._turns: list[Turn] = []
        self._choice = Keep(self._layers) if options["keep"] == "auto" else None
        for layer in self._layers:
            layer.look = self._choice.look if self._choice is not None else None

    def _keep(self, number: int) -> None:
        super()._keep(number)
        # (Kept layers and what follows run in one go: one micro-batch's graph is alive.)
        self._first_kept = len(self._layers) - number

    def step(self, compute: Callable[[Any], torch.Tensor], parts: Sequence[Any]) -> torch.Tensor:
        """One step of the optimizer: compute(part) gives the loss of each of `parts`, whose
        gradients are summed. Returns the sum of the losses, without a graph; gradients of the
        optimizer's parameters are None then. The first step runs as the plain loop.

        Bits are those of
            for part in parts: compute(part).backward()
            optimizer.step(); optimizer.zero_grad()
        An exception of one of the micro-batches, once all threads have ended: gradients of this
        step are dropped, but a parameter that had a gradient before keeps that with what this step
        has added (zero_grad() drops it); what was updated already is named in a note to it.

        Micro-batches take turns in one model. An attribute or a buffer that compute, or the model
        in it, writes for one of them, and reads behind a layer, is another's by then: this is not
        supported. (Attributes that each call changes are named in a warning, in the first
        step.)"""
        if not self._forwards:
            raise RuntimeError("firn.relay: step() after close()")
        parts = list(parts)
        if not 0 < len(parts) <= self.micro_batches:
            raise ValueError(f"firn.relay: {len(parts)} parts: micro_batches={self.micro_batches}")
        if getattr(self._here, "turn", None) is not None:
            raise RuntimeError("firn.relay: step() within step()")
        self._begin_step()
        had = {each for each in self.model.parameters() if each.grad is not None}
        try:
            losses = self._threads(compute, parts) if self._learned \
                else self._plainly(compute, parts)
            self._end_step()
            if self._choice is not None and self._choice.looking:
                self._keep(self._choice.end_step())
                self._note_kept()
        except BaseException as error:
            self._update.abandon()
            if self._sums is not None:
                self._sums.finish()
            for parameter in self.model.parameters():
                if parameter not in had:
                    parameter.grad = None
            self._note_updated(error)
            for layer in self._layers:
                layer.begin_step()
            raise
        finally:
            self._turns = []
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total

    def _begin_step(self) -> None:
        torch.clear_autocast_cache()  # (weights that were cast before the last update)
        watch.check_model(self.model, self._layers)
        layers_of.share_out(self.model, self._layers)
        for layer in self._layers:
            layer.begin_step()
        if self._choice is not None:
            self._choice.begin_step()

    def _plainly(self, compute: Callable[[Any], torch.Tensor],
                 parts: Sequence[Any]) -> list[torch.Tensor]:
        generators = generators_of(self.model.parameters())
        losses = []
        attributes: Attributes | None = None
        changed: list[str] = []
        drawn = False
        try:
            for number, part in enumerate(parts):
                before = [each.get_offset() for each in generators]
                on_cpu = Randomness(())
                turn = self._here.turn = Turn(number, None, self._draws, self._places)
                torch.clear_autocast_cache()
                loss = self._loss(compute, part)
                if attributes is not None:
                    changed += attributes.changed()
                attributes = Attributes(self.model)
                if number == 0 and not turn.calls:
                    raise Refused("firn.relay: the first step called none of the layers "
                                  f"{', '.join(self.layers)} with gradients (no_grad(), or "
                                  "checkpoint(use_reentrant=True) around them?)")
                self._look_outside(loss, turn)
                self._backward(loss)
                self._fold([each for layer in self._layers for each in layer.own])
                losses.append(loss.detach())
                self._draws.learn(kind_of(part), [each.get_offset() - begin for each, begin
                                                  in zip(generators, before)])
                drawn |= on_cpu.has_moved()
        finally:
            self._here.turn = None
        if changed:
            self._say(f"each call of compute changes {', '.join(dict.fromkeys(changed))}: "
                      "micro-batches take turns at the layers, so that one that reads it behind "
                      "a layer finds another's; give it to the layers as an argument")
        self._say_of_draws(drawn)
        self._learned = True
        self._note_kept()
        return losses

    def _note_kept(self) -> None:
        # (Later steps take kept layers' parameters for shared ones: no node stands for the layer.)
        shared = {each for layer in self._layers for each in layer.shared}
        self._kept = [each for layer in self._layers if layer.kept
                      for each in layer.module.parameters() if each not in shared]

    def _say_of_draws(self, on_cpu: bool) -> None:
        """Once, in the first step that draws from a generator of the host."""
        if on_cpu and not self._draws.on_cpu:
            self._draws.on_cpu = True
            self._say("random numbers come from the CPU's generator (dropout): they are drawn "
                      "layer by layer, other ones than the plain loop's, equal in distribution")

    def _threads(self, compute: Callable[[Any], torch.Tensor],
                 parts: Sequence[Any]) -> list[torch.Tensor]:
        baton = Baton(len(parts))
        self._turns = [Turn(number, baton, self._draws, self._places)
                       for number in range(len(parts))]
        losses: list[torch.Tensor] = [torch.empty(0)] * len(parts)
        state = ThreadState()
        self._draws.begin(generators_of(self.model.parameters()), list(map(kind_of, parts)))

        def body(number: int) -> None:
            turn = self._here.turn = self._turns[number]
            with state.put():
                self._draws.enter(number)
                loss = self._loss(compute, parts[number])
                reached = self._look_outside(loss, turn)
                turn.end_forward(reached, self._turns[:number],
                                 any(each.shared for each in self._layers))
                self._backward(loss)
                self._fold(self._kept)
                losses[number] = loss.detach()
                self._draws.leave(number)

        on_cpu = Randomness(())
        try:
            baton.run(body)
        finally:
            self._draws.end()
        self._say_of_draws(on_cpu.has_moved())
        return losses

    @staticmethod
    def _loss(compute: Callable[[Any], torch.Tensor], part: Any) -> torch.Tensor:
        loss = compute(part)
        if not isinstance(loss, torch.Tensor):
            raise TypeError("firn.relay: step(compute, parts): compute(part) returned a "
                            f"{type(loss).__name__}, and not the loss (a tensor)")
        return loss

    def _backward(self, loss: torch.Tensor) -> None:
        if self._choice is not None:
            self._choice.look()
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        scaled.backward()

    def _fold(self, parameters: Sequence[nn.Parameter]) -> None:
        """Adds their gradients of a micro-batch to the sums in 32 bits."""
        if self._sums is not None:
            self._sums.fold(parameters)

    def _look_outside(self, loss: torch.Tensor, turn: Turn) -> set[Call]:
        """Parameters of layers that are used outside of them become shared. Returns the calls that
        the loss depends on."""
        holders: dict[nn.Parameter, list[Layer]] = {}
        used: list[nn.Parameter] = []
        for layer in self._layers:
            for parameter in layer.own:
                holders.setdefault(parameter, []).append(layer)
            if turn.calls.get(layer.number, 0) > 1:
                used += layer.own
        outside, calls = watch.outside_uses(loss, turn.inside, holders.keys())
        used += outside
        turn.inside = watch.Inside()
        for parameter in used:
            for layer in holders[parameter]:
                layer.share(parameter)
        return calls

    def _end_step(self) -> None:
        optimizer, scaler = self.optimizer, self._scaler
        if self._sums is not None:
            self._sums.finish()
        if self._clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            self.gradient_norm = nn.utils.clip_grad_norm_(self.model.parameters(), self._clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        self._update.drop_gradients()

    def _note_updated(self, error: BaseException) -> None:
        names = [str(each) for each in self._layers if each.updated]
        if names:
            words = f"firn.relay: these layers had been updated already: {', '.join(names)}"
            if hasattr(error, "add_note"):
                error.add_note(words)
            else:
                self._say(words[len("firn.relay: "):])

    def _enter(self, layer: Layer, args: Any, kwargs: Any) -> Any:
        turn = getattr(self._here, "turn", None)
        if turn is None or self._is_inside():
            return layer.forward(*args, **kwargs)
        if layer.number <= self._first_kept:
            if turn.number == 0:
                self._hints.wanted(layer.number + 1)
            turn.seam()
        if layer.updated:
            raise Refused(f"firn.relay: layer {layer} runs again after its update in this step: "
                          "eager=False updates at the end")
        if not torch.is_grad_enabled() or (layer.kept and self._learned):
            return layer.forward(*args, **kwargs)
        turn.enter(layer.number)
        tensors: list[torch.Tensor] = []
        structure = trees.apart((args, kwargs), tensors, f"layer {layer} is given")
        with self._inside():
            if not self._learned:
                return watch.look(layer, structure, tensors, turn.inside)[1]
            result, call = self._again(layer, structure, tensors, turn.inside)
        if call is not None:
            turn.made(call)
        if turn.number == len(self._turns) - 1:
            self._hints.done(layer)
        return result

    def _before_backward(self, call: Call) -> None:
        turn = getattr(self._here, "turn", None)
        if turn is not None and not turn.forward_ended:
            raise Refused("firn.relay: compute begins a backward pass, and step() makes its own: "
                          f"one is a second backward pass through layer {call.layer}")
        if turn is None:
            raise Refused(f"firn.relay: a backward pass through layer {call.layer} after its "
                          "step()")
        if turn.number == 0:
            self._hints.wanted(call.layer.number - 1)
        self._fold(self._kept)
        turn.begin_backward(call, self._turns[:turn.number])

    def _after_backward(self, layer: Layer) -> None:
        self._fold(layer.own)
        if layer.forwards == layer.backwards and \
                all(each.forward_ended for each in self._turns):
            if self._sums is not None:
                self._sums.finish(layer.own)
            self._update.layer_done(layer)
            self._hints.done(layer)
