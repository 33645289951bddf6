"""L2L's order of a training step over micro-batches (Pudipeddi et al., arXiv 2002.05645), for
models that call their repeated layers in turn: each layer runs over all micro-batches before the
next one does. Forward it keeps its inputs alone (torch.utils.checkpoint); backward, last layer
first, it is recomputed micro-batch by micro-batch, ascending, and gradients accumulate. Behind the
last layer each micro-batch's forward pass ends and its backward pass begins at once. With eager
updates (updates.py) a layer's optimizer step follows its backward pass.

The model's own code runs unchanged, once for each micro-batch, in threads of which one runs at a
time: a thread that calls a layer waits there until all of them do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import Any, Callable

import torch
from torch.autograd.graph import get_gradient_edge
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.checkpoint import checkpoint


class _Turn:
    """One micro-batch's forward pass, in a thread of its own, up to its next layer."""

    def __init__(self, of: Callable[[], torch.Tensor], modes: Callable[[], contextlib.ExitStack]):
        self._of, self._modes = of, modes
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run)
        self.called: tuple[Any, tuple, dict] | None = None    # the layer that is waited for
        self.value: Any = None                                # it gives; or the loss, in the end
        self.error: BaseException | None = None
        self.cuts: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._thread.start()

    def _run(self) -> None:
        self._go.acquire()
        try:
            with self._modes():
                self.value = self._of()
        except BaseException as error:           # the main thread raises it
            self.error = error
        self.called = None
        self._stopped.release()

    def go_on(self) -> None:
        """To the next layer, or to the end."""
        self._go.release()
        self._stopped.acquire()
        if not self.called:
            self._thread.join()
        if self.error:
            raise self.error

    def give_up(self) -> None:
        """Ends the thread, wherever it waits."""
        if self._thread.is_alive():
            self.error = self.error or RuntimeError("another micro-batch failed")
            self._go.release()
            self._thread.join()

    def call(self, layer: Any, args: tuple, kwargs: dict) -> Any:
        """In the thread: what the layer gives."""
        self.called = (layer, args, kwargs)
        self._stopped.release()
        self._go.acquire()
        if self.error:
            raise self.error
        value, self.value = self.value, None
        return value


@dataclasses.dataclass
class _Ran:
    """A layer over one micro-batch, until its backward pass."""
    edges: list                               # of its results
    leaves: list[torch.Tensor]                # stand for them behind it
    cuts: list[tuple[Any, torch.Tensor]]      # ends the graph in front of it, and what stands there


class Relay:
    def __init__(self, layers: list[torch.nn.Module],
                 modes: Callable[[], contextlib.ExitStack] = contextlib.ExitStack):
        """`layers` are called in one order in every micro-batch; their forward is replaced.
        `modes`: what a thread has to be in, as they belong to threads."""
        self._modes = modes
        self._turn: _Turn | None = None
        self._forward: dict[Any, Callable] = {}
        for layer in layers:
            self._forward[layer] = layer.forward
            layer.forward = lambda *args, _layer=layer, **kwargs: \
                self._turn.call(_layer, args, kwargs)

    def step(self, losses: list[Callable[[], torch.Tensor]]) -> None:
        """One forward and backward pass over all micro-batches: gradients are those of the sum of
        `losses`, one function for each. The first error of a micro-batch is raised here."""
        turns = [_Turn(each, self._modes) for each in losses]
        try:
            ran = self._run_forward(turns)
        finally:
            for each in turns:
                each.give_up()
        while ran:
            self._run_backward(ran.pop())

    def _run_forward(self, turns: list[_Turn]) -> list[list[_Ran]]:
        ran: list[list[_Ran]] = []
        while True:
            for turn in turns:
                self._turn = turn
                turn.go_on()
                if not turn.called:           # one micro-batch's head at a time
                    turn.value.backward()
                    turn.value = None
                    turn.cuts.clear()
            waiting = {turn.called[0] if turn.called else None for turn in turns}
            if len(waiting) > 1:
                raise RuntimeError("micro-batches call different layers: no relay is possible")
            if waiting == {None}:
                return ran
            ran.append([self._run_layer(turn) for turn in turns])

    def _run_layer(self, turn: _Turn) -> _Ran:
        layer, args, kwargs = turn.called
        cuts: list[tuple[Any, torch.Tensor]] = []

        def cut(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.grad_fn is None:
                return tensor
            known = turn.cuts.get(id(tensor))
            if known is None:
                known = turn.cuts[id(tensor)] = (tensor, tensor.detach().requires_grad_())
                cuts.append((get_gradient_edge(tensor), known[1]))
            return known[1]

        args, kwargs = tree_map_only(torch.Tensor, cut, (args, kwargs))
        turn.called = None
        given = checkpoint(self._forward[layer], *args, use_reentrant=False,
                           preserve_rng_state=False, **kwargs)
        flat, spec = tree_flatten(given)
        edges, leaves = [], []
        for at, each in enumerate(flat):
            if isinstance(each, torch.Tensor) and each.grad_fn is not None:
                edges.append(get_gradient_edge(each))
                flat[at] = each.detach().requires_grad_()
                leaves.append(flat[at])
        turn.value = tree_unflatten(flat, spec)
        turn.called = (layer, (), {})
        return _Ran(edges, leaves, cuts)

    @staticmethod
    def _run_backward(parts: list[_Ran]) -> None:
        parts.reverse()                       # ascending by pop(): each is let go behind its turn
        gradients = [[each.grad for each in part.leaves] for part in parts]
        for part in parts:
            part.leaves.clear()
        while parts:
            part, given = parts.pop(), gradients.pop()
            _pull(part.edges, given)
            _pull([edge for edge, _ in part.cuts], [leaf.grad for _, leaf in part.cuts])


def _pull(edges: list, gradients: list[torch.Tensor | None]) -> None:
    of = [(edge, gradient) for edge, gradient in zip(edges, gradients) if gradient is not None]
    if of:
        torch.autograd.backward([edge for edge, _ in of], [gradient for _, gradient in of])
