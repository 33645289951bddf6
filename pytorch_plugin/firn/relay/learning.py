"""The plain calls of a layer in a program that knows nothing of the relay: could it run again?

A layer runs plainly until the optimizer's first step, as without a relay: its own result goes on.
The first call of each kind is looked at (watch.PlainRun), and followed by a second run with the
same random numbers, for comparison. A layer that fails is refused, and the program is still where
it would be without a relay. So is one that the backward pass finds changed.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
import sys
import weakref
from typing import Any, Callable, ContextManager, Sequence

import torch

from firn.relay import watch
from firn.relay.attributes import Attributes
from firn.relay.layers import Layer
from firn.relay.node import Run
from firn.relay.sameness import Sample
from firn.relay.state import Settings
from firn.relay.trees import Refused

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def check_arguments(layer: Layer, tensors: Sequence[torch.Tensor]) -> None:
    """Refused, where one is of a class that stands for something else (fake, nested, distributed),
    or sparse."""
    for each in tensors:
        if type(each) not in (torch.Tensor, torch.nn.Parameter) or \
                each.layout is not torch.strided:
            kind = type(each).__name__
            raise Refused(f"layer {layer} is given a {kind} of layout {each.layout}, which may not "
                          "be cut or compared as others are")


def check_inside(layer: Layer, inner: Sequence[torch.nn.Module],
                 parameters: Sequence[torch.nn.Parameter]) -> None:
    """Refused, for what a second run does twice: hooks on `inner` modules of the layer and on its
    `parameters`, running statistics."""
    if any(each._backward_hooks or each._post_accumulate_grad_hooks for each in parameters):
        raise Refused(f"layer {layer} has a hook on a parameter's gradient, which would run in "
                      "each run of the layer")
    for module in inner:
        if any(getattr(module, hooks) for hooks in _HOOKS):
            raise Refused(f"layer {layer} has a hook on a {type(module).__name__} in it, which "
                          "would run in each run of the layer")
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training and \
                module.track_running_stats:
            raise Refused(f"layer {layer} has a {type(module).__name__} with running statistics, "
                          "which a second run would update twice")


def first_call(layer: Layer, structure: Any, tensors: Sequence[torch.Tensor], settings: Settings,
               refuse: Callable[[Refused], None]) -> Any:
    """The layer's own result, of a plain run. Calls `refuse` where it could not run again."""
    drawn, attributes = _other_generators(layer), Attributes(layer.module, "it")
    run = watch.PlainRun(layer, structure, tensors)
    try:
        run.check(watch.Inside())
        written = attributes.changed_in_place()
        if written:
            raise Refused(f"layer {layer} changes {', '.join(written)} in place")
        moved = [name for name, state in _other_generators(layer).items()
                 if state != drawn.get(name)]
        if moved:
            raise Refused(f"layer {layer} draws from {moved[0]}, of which a second run would get "
                          "other numbers")
        _run_again(layer, structure, tensors, settings, run.result, attributes.changed())
    except Refused as why:
        refuse(why)
    except Exception as error:  # (the program's own run is over)
        refuse(Refused(f"layer {layer} cannot be looked at: {type(error).__name__}: {error}"))
    return run.value


def _run_again(layer: Layer, structure: Any, tensors: Sequence[torch.Tensor], settings: Settings,
               first: Sequence[torch.Tensor], changed: Sequence[str]) -> None:
    """Refused, where a second run has other results, or does again what the first one did."""
    attributes = Attributes(layer.module, "it")
    run = Run(layer, structure, tensors, settings)
    again: list[torch.Tensor] = []
    try:
        with settings.once_more(), _own_hooks():
            run.forward(again)
        twice = [name for name in attributes.changed() if name in changed]
    except Exception as error:
        raise Refused(f"layer {layer} fails in a second run: {type(error).__name__}: {error}"
                      ) from error
    finally:
        attributes.put_back()
    if twice:
        raise Refused(f"layer {layer} changes {', '.join(twice)} in each run")
    leaves = [weakref.ref(each) for each in run.leaves]
    run.leaves = []
    if any(each() is not None for each in leaves):
        gc.collect()
    if any(each() is not None for each in leaves):
        raise Refused(f"layer {layer} computes a tensor that outlives it and is no result (an "
                      "attribute, a hook that keeps it, router logits)")
    if not Sample(first).is_close(again, settings.casts or torch.backends.cuda.matmul.allow_tf32):
        raise Refused(f"layer {layer} has other results in a second run with the same random "
                      "numbers (a counter, a generator of its own)")


def _own_hooks() -> ContextManager[None]:
    """The program's hooks on saved tensors (checkpoint's, which counts them) see the first run."""
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is None:
        return contextlib.nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, torch.Tensor.detach)


PAUSED = ("'gradient_checkpointing' of it",)  # is off within the forward pass (watch.pause)


def watch_backward(layer: Layer, structure: Any, tensors: Sequence[torch.Tensor],
                   settings: Settings, result: Sequence[torch.Tensor],
                   exact: bool, begun: Callable[[], None],
                   refuse: Callable[[Refused], None]) -> None:
    """Calls `begun` when the backward pass reaches the layer, and `refuse` if it could not run
    again then. `exact`: or if it would round elsewhere."""
    run = Run(layer, structure, tensors, settings)
    run.needed = [each.requires_grad for each in result]
    run.returned([each.detach() for each in result])

    waiting = [(run, Attributes(layer.module, "it"))]

    def reached(*_: Any) -> None:
        if waiting:
            layer.backwards += 1
            begun()
            try:
                run, attributes = waiting.pop()
                run.check()
                others = [each for each in attributes.changed() if each not in PAUSED]
                if others:
                    raise Refused(f"layer {layer} runs again with other values of "
                                  f"{', '.join(others)}, which something else has set meanwhile")
                if exact and torch.is_grad_enabled():
                    raise Refused(f"a backward pass with create_graph=True reaches layer {layer}: "
                                  "its bits would be others (of 2 micro-batches they are anyway)")
            except Refused as why:
                refuse(why)

    del run
    for node in {each.grad_fn for each in result if each.grad_fn is not None}:
        node.register_prehook(reached)


def _other_generators(layer: Layer) -> dict[str, bytes]:
    """The states of generators of random numbers that Settings does not put back."""
    found = {}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy.random"] = pickle.dumps(numpy.random.get_state())
    for module in layer.module.modules():
        for key, value in vars(module).items():
            if isinstance(value, torch.Generator):
                found[f"its generator {key!r}"] = bytes(value.get_state().cpu().tolist())
    return found
