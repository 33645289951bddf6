"""A layer's call in a program that knows nothing of the relay: whatever backward pass reaches it
finds what the plain graph has.

All trainable parameters of the layer are inputs of its node. So autograd itself adds their
gradients up, calls the hooks on them, and passes over those that torch.autograd.grad() and
backward(inputs=...) have not asked for. With retain_graph=True the inputs are kept for the next
pass; with create_graph=True the layer runs again with a graph, over the whole batch.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch

from firn.relay.node import Call, Gradients
from firn.relay.trees import Refused


class FreeCall(Call):
    def backward(self, gradients: Sequence[torch.Tensor | None]) -> Gradients:
        run = self._take()
        with self._inside():
            found = run.backward(self._uses, self._shared, self._which, gradients)
        self._ended()
        return [each for contributions in found for each in contributions]

    def differentiable(self, edges: Sequence[torch.Tensor],
                       gradients: Sequence[torch.Tensor | None]) -> Gradients:
        """As backward(), with a graph. `edges` are the node's inputs."""
        first = [sum(self._uses[:at]) for at in range(len(self._uses))]  # of an input's edges
        inputs = [edges[at] for at in first[:len(first) - len(self._shared)]]
        run = self._take()
        with self._inside():
            found = getattr(run, "whole", run).differentiable(inputs, self._shared, self._which,
                                                              gradients)
        self._ended()
        return [each if at == 0 else None
                for each, uses in zip(found, self._uses, strict=True) for at in range(uses)]

    def _take(self) -> Any:
        if self._run is None:
            raise Refused(f"firn.relay: a second backward pass through layer {self.layer}, and the "
                          "first one was without retain_graph=True: its inputs are gone")
        self._before(self)
        if torch._C._autograd._get_current_graph_task_keep_graph():
            return self._run.spare()
        run, self._run = self._run, None
        return run

    def _ended(self) -> None:
        self.layer.backwards += 1
        self._after(self.layer)


class _FreeNode(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, call: FreeCall, result: list[torch.Tensor],
                *edges: torch.Tensor) -> tuple[torch.Tensor, ...]:
        context.set_materialize_grads(False)
        context.call = call
        if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
            context.save_for_backward(*edges)  # (what packs them would copy parameters, too)
        return call.forward(result)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor | None) -> Any:
        call: FreeCall = context.call
        if not torch.is_grad_enabled():
            return (None, None, None, *call.backward(gradients))
        if not context.saved_tensors:
            raise Refused(f"firn.relay: layer {call.layer} ran under saved_tensors_hooks, and a "
                          "backward pass with create_graph=True wants its inputs (FIRN_RELAY=0 "
                          "runs the program plainly)")
        return (None, None, None, *call.differentiable(context.saved_tensors[1:], gradients))


FreeCall._node = _FreeNode
