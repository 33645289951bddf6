"""torch.compile(model, backend="firn"), and whole training steps as one graph: the operators run in
an order in which little memory is alive at once (`firn order`). Each operator is the one that would
have run without, on the same values: results are the same to the last bit.

    model = torch.compile(model, backend="firn")    # the forward and the backward graph, each

    @firn.compiled.training_step                    # forward, backward and optimizer in one
    def step(parameters, state, batch): ...
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Sequence

import torch
from torch.utils import _pytree as pytree

from firn import _graph

__all__ = ["backend", "reorder", "training_step"]

DEADLINE = "10s"


def _kind(node: torch.fx.Node, freed: bool) -> str:
    # AOTAutograd's names: what the caller keeps anyway.
    return "batch" if freed and not node.name.startswith("primals") else "const"


def reorder(module: torch.fx.GraphModule, *, inputs_freed: bool = False,
            deadline: str = DEADLINE) -> dict[str, Any]:
    """Puts the module's nodes, which need meta["val"], into the order that `firn order` finds, and
    returns its findings: peaks, bound, height in bytes. `inputs_freed`: the caller lets go of the
    inputs when it calls, so that each lives to its last use only (not AOTAutograd's primals)."""
    graph = module.graph
    recorder = _graph.Recorder()
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            kind = _kind(node, inputs_freed and node.op == "placeholder")
            for storage in _graph.storages_in(node):
                recorder.number(storage, kind)
        elif node.op == "output":
            recorder.end(node.all_input_nodes)
        else:
            recorder.node(node)
    if len(recorder.ops) < 2:
        return {}
    nodes, found = _graph.order(recorder, deadline)
    _put(graph, nodes)
    graph.lint()  # type: ignore[no-untyped-call]
    module.recompile()
    module.meta["firn"] = found
    return found


def _put(graph: torch.fx.Graph, operators: Sequence[torch.fx.Node]) -> None:
    """Places operators in their new order, and before each the views and parts of tuples that it
    reads through. (Those read no values: any place behind their source is right.)"""
    placed = {node for node in graph.nodes if node.op in ("placeholder", "get_attr")}
    end = next(iter(reversed(graph.nodes)))
    for operator in [*operators, end]:
        waiting = [operator]
        while waiting:
            node = waiting[-1]
            missing = [each for each in node.all_input_nodes if each not in placed]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            if node not in placed and node is not end:
                placed.add(node)
                end.prepend(node)
    for node in reversed(graph.nodes):
        if node not in placed and node is not end:
            graph.erase_node(node)  # a view that no operator reads through


def _compile(module: torch.fx.GraphModule, _: Sequence[Any], freed: bool) -> Callable[..., Any]:
    reorder(module, inputs_freed=freed)
    if freed:
        codegen = torch.fx.graph._BoxedCodeGen()  # type: ignore[no-untyped-call]
        module.graph.set_codegen(codegen)
        module.recompile()

        def boxed(arguments: list[Any]) -> Any:
            return module.forward(arguments)
        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed
    from functorch.compile import make_boxed_func  # type: ignore[import-untyped]
    return make_boxed_func(module.forward)  # type: ignore[no-any-return]


def backend(module: torch.fx.GraphModule, examples: Sequence[Any], **_: Any) -> Callable[..., Any]:
    """The entry point of torch.compile."""
    from functorch.compile import default_partition
    from torch._dynamo.backends.common import aot_autograd
    compiler = aot_autograd(fw_compiler=functools.partial(_compile, freed=False),
                            bw_compiler=functools.partial(_compile, freed=True),
                            partition_fn=default_partition)
    return compiler(module, examples)


def _signature(arguments: Any) -> Any:
    leaves, spec = pytree.tree_flatten(arguments)
    return spec, tuple((each.shape, each.stride(), each.dtype, each.device, each.requires_grad)
                       if isinstance(each, torch.Tensor) else each for each in leaves)


class training_step:
    """A function of (nested dictionaries, lists, tuples of) tensors that may write them in place,
    take gradients (torch.autograd.grad) and update parameters: captured as one graph when it is
    called with such arguments for the first time, ordered, and from then on run in that order.
    `found` is what `firn order` said of the last graph; `program_order=True` leaves it as it is."""

    def __init__(self, step: Callable[..., Any], *, program_order: bool = False) -> None:
        self.found: dict[str, Any] = {}
        self._step, self._program_order = step, program_order
        self._graphs: dict[Any, tuple[torch.fx.GraphModule, Any]] = {}
        functools.update_wrapper(self, step)

    def __call__(self, *arguments: Any) -> Any:
        key = _signature(arguments)
        if key not in self._graphs:
            self._graphs[key] = self._capture(arguments)
        module, spec = self._graphs[key]
        # The gradients are operators of the graph.
        with torch.no_grad():
            return pytree.tree_unflatten(module(*pytree.tree_leaves(arguments)), spec)

    def _capture(self, arguments: Any) -> tuple[torch.fx.GraphModule, Any]:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx
        leaves, spec = pytree.tree_flatten(arguments)
        out_spec: list[Any] = []

        def flat(*values: Any) -> list[Any]:
            result = self._step(*pytree.tree_unflatten(values, spec))
            results, made = pytree.tree_flatten(result)
            out_spec.append(made)
            return results

        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fakes = [mode.from_tensor(each) if isinstance(each, torch.Tensor) else each
                     for each in leaves]
            module = make_fx(flat, tracing_mode="real", _allow_non_fake_inputs=True)(*fakes)
        if not self._program_order:
            self.found = reorder(module)
        return module, out_spec[-1]
