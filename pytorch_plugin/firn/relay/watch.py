"""The first, plain run of a layer: what it does that a second run would do again, and how its
gradients' edges lie. And, of each micro-batch's graph, who else uses the layers' parameters.
"""

from __future__ import annotations

from typing import Any, Callable, Collection, Hashable, NamedTuple, Sequence

import torch
from torch import nn

from firn.relay import trees
from firn.relay.layers import Layer
from firn.relay.node import (Buffers, Call, call_of, hooked, hooks_of, nodes_behind,
                             version_of)
from firn.relay.trees import Refused


class Seen(NamedTuple):
    """Of a layer's run with one kind of arguments."""

    inputs: list[int]                   # uses of each input that needs a gradient
    parameters: dict[nn.Parameter, int]  # uses of each trainable parameter
    needed: list[bool]                  # which tensors of the result need gradients


def kind_of(structure: Any, tensors: Sequence[torch.Tensor], layer: Layer) -> Hashable:
    """Runs of one kind have the same graph, as far as edges to inputs go."""
    return (trees.outline(structure), tuple(each.requires_grad for each in tensors),
            tuple(each.requires_grad for each in layer.module.parameters()), layer.module.training)


def look(layer: Layer, structure: Any, tensors: Sequence[torch.Tensor],
         inside: Inside) -> tuple[Seen, Any]:
    """Runs the layer plainly, once, with its graph, which is added to `inside`. Refused is
    what cannot run twice: changes in place of arguments or of buffers, results that are no
    tensors, tensors of the graph that are no arguments."""
    torch.clear_autocast_cache()  # (a weight is cast in each call, as when it runs again)
    run = PlainRun(layer, structure, tensors)
    return run.check(inside), run.value


class PlainRun:
    """Runs the layer plainly, once, with its graph: `value` is what it returned."""

    def __init__(self, layer: Layer, structure: Any, tensors: Sequence[torch.Tensor]) -> None:
        self._layer, self._structure, self._tensors = layer, structure, tensors
        self._args, self._kwargs = trees.together(structure, tensors)
        self._buffers = Buffers(layer)
        self._before = [version_of(each) for each in tensors]
        self._hooks = hooks_of(tensors)  # (asks for grad_fn: views that were changed have new ones)
        self.result: list[torch.Tensor] = []  # the tensors of `value`, after check()
        self._begin = _now()
        self.value = layer.forward(*self._args, **self._kwargs)
        self._end = _now()

    def check(self, inside: Inside) -> Seen:
        """The words of look()."""
        layer, tensors = self._layer, self._tensors
        _look_at_changes(layer, self._structure, tensors, self._before, self._args, self._kwargs)
        self._buffers.check()
        if hooks_of(tensors) != self._hooks and not layer.kept:
            raise hooked(layer)
        trees.apart(self.value, self.result, f"layer {layer} returned")
        seen = _edges(layer, tensors, self.result, self._begin, inside.nodes)
        if not layer.kept:  # (whose graph stays)
            inside.add(layer, self._begin, self._end, tensors, self.result)
        layer.seen[kind_of(self._structure, tensors, layer)] = seen
        return seen


def _now() -> int:
    """The number that this thread's next node gets."""
    node = torch.zeros((), requires_grad=True).clone().grad_fn
    assert node is not None
    return int(node._sequence_nr())


def _look_at_changes(layer: Layer, structure: Any, tensors: Sequence[torch.Tensor],
                     before: Sequence[int], args: Any, kwargs: Any) -> None:
    for at, tensor in enumerate(tensors):
        if version_of(tensor) != before[at]:
            raise Refused(f"firn.relay: layer {layer} changes one of its arguments in place (shape "
                          f"{tuple(tensor.shape)}): it cannot run twice")
    again: list[torch.Tensor] = []
    if trees.apart((args, kwargs), again, f"layer {layer} left") != structure or \
            any(one is not other for one, other in zip(again, tensors)):
        raise Refused(f"firn.relay: layer {layer} changes a list or dictionary that it is given: "
                      "it cannot run twice")


def _edges(layer: Layer, tensors: Sequence[torch.Tensor], result: Sequence[torch.Tensor],
           begin: int, inside: set[Any]) -> Seen:
    gradients = [each for each in tensors if each.requires_grad]
    edges = [torch.autograd.graph.get_gradient_edge(each) for each in gradients]
    places = {(each.node, each.output_nr): at for at, each in enumerate(edges)}
    own = set(layer.module.parameters())
    inputs, parameters = [0] * len(gradients), dict[nn.Parameter, int]()
    waiting = [(each.grad_fn, each.output_nr) for each in result if each.grad_fn is not None]
    seen: set[Any] = set()

    def follow(node: Any, number: int) -> None:
        if (node, number) in places:
            inputs[places[node, number]] += 1
        elif hasattr(node, "variable"):
            if node.variable not in own and not isinstance(node.variable, nn.Parameter):
                raise Refused(f"firn.relay: layer {layer} uses a tensor that needs a gradient "
                              f"(shape {tuple(node.variable.shape)}) and is neither a parameter "
                              "nor an argument: give it to the layer as one")
            parameters[node.variable] = parameters.get(node.variable, 0) + 1
        elif node._sequence_nr() < begin:
            raise Refused(f"firn.relay: layer {layer} uses the result of {node.name()} from "
                          "outside, which is no argument: give it to the layer as one")
        elif node not in seen:
            seen.add(node)
            for edge in node.next_functions:
                if edge[0] is not None:
                    follow_later.append(edge)

    follow_later = [edge for edge in waiting if edge not in places]
    for edge in set(waiting) & places.keys():
        inputs[places[edge]] += 1  # an argument that is a result, too
    while follow_later:
        follow(*follow_later.pop())
    inside |= seen
    if layer.shared and any(each.name() == "CheckpointFunctionBackward" for each in seen):
        raise Refused(f"firn.relay: layer {layer} uses checkpoint(use_reentrant=True), and "
                      "parameters that something else uses too: use_reentrant=False")
    for parameter in parameters:
        if parameter not in own:
            layer.share(parameter)
    return Seen([max(1, each) for each in inputs], parameters,
                [each.requires_grad for each in result])


class Inside:
    """The graphs of layers' calls: of plain ones their nodes, of others the leaves that stand for
    their arguments."""

    def __init__(self) -> None:
        self.nodes: set[Any] = set()
        self._returned: set[tuple[Any, int]] = set()  # edges
        self._calls: list[tuple[int, int, Layer, set[Any]]] = []
        self._leaves: dict[Any, Layer] = {}

    def add(self, layer: Layer, begin: int, end: int, tensors: Sequence[torch.Tensor],
            result: Sequence[torch.Tensor]) -> None:
        """A plain call, whose nodes are numbered from `begin` to `end`."""
        for each in result:
            for tensor in (each, each._base):  # (a view's in-place operators go to its base)
                if tensor is not None and tensor.grad_fn is not None:
                    self._returned.add((tensor.grad_fn, tensor.output_nr))
        self._calls.append((begin, end, layer, {each.grad_fn for each in tensors}))

    def add_leaves(self, layer: Layer, leaves: Sequence[torch.Tensor]) -> None:
        for each in leaves:
            self._leaves[torch.autograd.graph.get_gradient_edge(each).node] = layer

    def check(self, node: Any, following: Any, number: int) -> None:
        """Refused is an edge from outside of the layers to something that one has computed and has
        not returned."""
        if following in self._leaves:
            raise _past_the_return(node, self._leaves[following])
        if following is None or hasattr(following, "variable") or _is_cast(following) or \
                (following, number) in self._returned:
            return
        at = following._sequence_nr()
        for begin, end, layer, arguments in self._calls:
            if begin < at < end and following not in arguments:
                raise _past_the_return(following, layer)


def _is_cast(node: Any) -> bool:
    """A weight, which autocast keeps for other uses."""
    return node.name() == "ToCopyBackward0" and hasattr(node.next_functions[0][0], "variable")


def _past_the_return(node: Any, layer: Layer) -> Refused:
    return Refused(f"firn.relay: the loss uses a tensor computed in layer {layer} "
                   f"({node.name()}), which it has not returned (an attribute, a hook that keeps "
                   "it, router logits, autograd.grad() with create_graph): return it from the "
                   "layer, or leave it out of the loss (output_router_logits=False); or keep= so "
                   "many last layers that this one is kept")


def outside_uses(loss: torch.Tensor, inside: Inside,
                 parameters: Collection[nn.Parameter]) -> tuple[list[nn.Parameter], set[Call]]:
    """Parameters of layers that the graph of `loss` uses outside of them: of nodes that are neither
    in `inside` nor layers. And the layers' calls in that graph. Refused: Inside.check()."""
    found, calls = [], set()
    for node in nodes_behind([loss]):
        call = call_of(node)
        if call is not None:
            calls.add(call)
        if node in inside.nodes or call is not None:
            continue
        for following, number in node.next_functions:
            inside.check(node, following, number)
            variable = getattr(following, "variable", None)
            if variable is not None and variable in parameters:
                found.append(variable)
    return found, calls


def check_model(model: nn.Module, layers: Sequence[Layer]) -> None:
    """Refused, before anything runs: what is known by its class."""
    names = {module: name or "the model" for name, module in model.named_modules()}
    for module, name in names.items():
        kind = type(module).__name__
        if kind in ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel") or \
                kind.startswith("FSDP"):
            raise Refused(f"firn.relay: {name} is a {kind}, which counts backward passes: not yet "
                          "supported")
        if kind == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            raise Refused(f"firn.relay: {name} is compiled: the layers' forward methods have to be "
                          "called by themselves")
    for layer in layers:
        for module in layer.module.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training and \
                    module.track_running_stats:
                raise Refused(f"firn.relay: {names[module]} is a {type(module).__name__} with "
                              "running statistics, which a second run would update twice: "
                              "track_running_stats=False, eval() of it, or layers=[...] "
                              "without it")


Say = Callable[[str], None]


def checkpointed(model: nn.Module) -> list[nn.Module]:
    """The modules that transformers' gradient checkpointing is on for."""
    return [each for each in model.modules()
            if getattr(each, "gradient_checkpointing", False) is True]


def caching(model: nn.Module) -> list[Any]:
    """The configurations by which modules keep keys and values."""
    found = {id(config): config for module in model.modules()
             for config in [getattr(module, "config", None)]
             if getattr(config, "use_cache", None) is True}
    return list(found.values())


def prepare(model: nn.Module, say: Say) -> Callable[[], None]:
    """Turns off what would run layers again, or keep state in them, beside the relay. Returns the
    function that turns it on again."""
    recomputed, configs = checkpointed(model), caching(model)
    disable = getattr(model, "gradient_checkpointing_disable", None)

    def undo() -> None:
        for module in recomputed if disable is not None else ():
            module.gradient_checkpointing = True  # type: ignore[assignment]
        for config in configs:
            config.use_cache = True

    try:
        if recomputed and disable is not None:
            disable()
            say("gradient checkpointing is turned off: the relay recomputes")
        for config in configs:
            config.use_cache = False
        if configs:
            say("use_cache of the model's configuration is off: a layer that keeps keys and values "
                "cannot run twice")
    except BaseException:
        undo()
        raise
    return undo


def pause(model: nn.Module) -> Callable[[], None]:
    """As prepare(), for the time of one forward pass, and without a word. Changes attributes alone,
    which what is called puts back."""
    recomputed, configs = checkpointed(model), caching(model)

    def put(wanted: bool) -> None:
        for module in recomputed:
            module.gradient_checkpointing = wanted  # type: ignore[assignment]
        for config in configs:
            config.use_cache = wanted

    put(False)
    return lambda: put(True)
