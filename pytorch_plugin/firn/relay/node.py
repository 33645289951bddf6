"""One call of a layer as one node of autograd: forward keeps the layer's inputs alone; backward
runs the layer again, and goes through that graph.

The gradients' sums are the plain graph's, to the last bit. There, each operator that uses an input
adds its own contribution to what has come so far; a node that gave their sum would add in other
brackets. So an input with n uses inside has n edges (watch.py counts them), and backward takes the
contributions one by one from the operators that made them. Parameters that something outside uses
too (tied ones) are inputs in that sense.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Callable, ContextManager, Iterator, Sequence

import torch
from torch.autograd.function import once_differentiable

from firn.relay import trees
from firn.relay.layers import Layer
from firn.relay.sameness import Sample
from firn.relay.state import Settings
from firn.relay.trees import Refused

Gradients = list[torch.Tensor | None]


class Run:
    """A layer over one set of inputs. Owns what it keeps of them, until backward."""

    def __init__(self, layer: Layer, structure: Any, tensors: Sequence[torch.Tensor],
                 settings: Settings) -> None:
        self._layer, self._structure, self._settings = layer, structure, settings
        self.needed: list[bool] = []  # of the result's tensors, which need gradients
        self._needs = [each.requires_grad for each in tensors]
        self._were_leaves = [each.is_leaf for each in tensors]
        self._tensors = [each.detach() if each.requires_grad else each for each in tensors]
        self._versions = [version_of(each) for each in tensors]
        self._parameters = _parameters_version(layer)
        self._training = layer.module.training
        self._buffers = Buffers(layer)
        self.leaves: list[torch.Tensor] = []  # of the first run
        self._views: list[tuple[torch.Tensor, int]] = []  # results in one storage, and versions
        self._sample: Sample | None = None  # of the result, where the second run is compared

    def forward(self, result: list[torch.Tensor]) -> Any:
        """Appends the tensors of the layer's result, and returns its structure (trees.apart). The
        layer runs with a graph, which ends here: kernels are chosen by whether gradients are
        needed (attention's are), and would round in other ways."""
        layer = self._layer
        with torch.enable_grad(), self._settings.without_cache():
            found: list[torch.Tensor] = []
            self.leaves, inputs = self._inputs()
            structure = trees.apart(self._call(inputs), found, f"layer {layer} returned")
            if hooks_of(inputs) != (0, 0):
                raise hooked(layer)
            self._buffers.check()
        self.needed = [each.requires_grad for each in found]
        layer.runs += 1
        if layer.runs & (layer.runs - 1) == 0:
            self._sample = Sample(found)
        mine = [each.detach() if each.requires_grad else each for each in found]
        self.returned(mine)
        result += mine
        return structure

    def returned(self, result: Sequence[torch.Tensor]) -> None:
        """Notes which tensors of `result` share memory, for check(); `needed` is known."""
        memory = [_memory_of(each) for each in result]
        self._views = [(each, version_of(each)) for each, one in zip(result, memory)
                       if any(other == one and needs for other, needs in zip(memory, self.needed))
                       and memory.count(one) > 1]

    def spare(self) -> Run:
        """One more of it, for one more backward pass."""
        return copy.copy(self)

    def _inputs(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Leaves for the inputs that need gradients, and all inputs. (Autocast casts a leaf once,
        and what is none at each use: as the inputs were.)"""
        leaves, inputs = [], []
        for tensor, needs, was_leaf in zip(self._tensors, self._needs, self._were_leaves):
            if needs:
                leaves.append(tensor.detach().requires_grad_())
                tensor = leaves[-1]
                if self._settings.casts and not was_leaf:
                    with torch.enable_grad():
                        tensor = tensor.view_as(tensor)
            inputs.append(tensor)
        return leaves, inputs

    def backward(self, uses: Sequence[int], shared: Sequence[torch.Tensor], which: Sequence[int],
                 gradients: Sequence[torch.Tensor | None]) -> list[Gradients]:
        """Runs the layer again and backward: adds to its own parameters' gradients, and returns
        those of each input that needs one, then of each of `shared`: uses[i] contributions.
        `gradients` are those of the result's tensors number `which`."""
        self.check()
        leaves, inputs = self._inputs()
        with self._settings.as_they_were():
            result: list[torch.Tensor] = []
            with torch.enable_grad():
                trees.apart(self._call(inputs), result, f"layer {self._layer} returned")
            self._compare(result, which)
            if self._layer.look is not None:
                self._layer.look()
            given = [(result[at], gradient) for at, gradient in zip(which, gradients)
                     if gradient is not None and result[at].requires_grad]
        self._tensors = []
        targets = [each for each, needs in zip(inputs, self._needs) if needs]
        found = [Contributions(each, count) for each, count in
                 zip((*targets, *shared), uses)]
        single = len(leaves)
        taken = [each for at, each in enumerate(found) if at >= single or each.count > 1]
        if given:
            take(taken, [each for each, _ in given])
            torch.autograd.backward([each for each, _ in given], [each for _, each in given])
        for each, leaf in zip(found, leaves):
            if leaf.grad is not None:  # one use, or the input is a result as it is
                each.add_first(leaf.grad)
        return [each.padded() for each in found]

    def differentiable(self, inputs: Sequence[torch.Tensor], shared: Sequence[torch.Tensor],
                       which: Sequence[int],
                       gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradients of `inputs`, which are the inputs that need one, with their graph, and of
        `shared`, as functions of these and of `gradients`: for create_graph=True."""
        self.check()
        gate = _Gate()
        waiting = iter(inputs)
        tensors = [gate(next(waiting)) if needs else each
                   for each, needs in zip(self._tensors, self._needs)]
        targets = [each for each, needs in zip(tensors, self._needs) if needs] + list(shared)
        result: list[torch.Tensor] = []
        with self._settings.as_they_were(), torch.enable_grad():
            trees.apart(self._call(tensors), result, f"layer {self._layer} returned")
        given = [(result[at], gradient) for at, gradient in zip(which, gradients)
                 if gradient is not None and result[at].requires_grad]
        if not given or not targets:
            return [None] * len(targets)
        with gate.shut():
            return list(torch.autograd.grad([each for each, _ in given], targets,
                                            [each for _, each in given], create_graph=True,
                                            allow_unused=True))

    def _call(self, tensors: Sequence[torch.Tensor]) -> Any:
        args, kwargs = trees.together(self._structure, tensors)
        return self._layer.forward(*args, **kwargs)

    def _compare(self, result: Sequence[torch.Tensor], which: Sequence[int]) -> None:
        """With what the first run returned: all that needs gradients, and some elements of some
        runs (the first, the second, the fourth, ...)."""
        sample, self._sample = self._sample, None
        loose = self._settings.casts or torch.backends.cuda.matmul.allow_tf32
        if len(result) <= max(which, default=-1) or \
                (sample is not None and not sample.is_close(result, loose)):
            raise Refused(f"firn.relay: the second run of layer {self._layer} has other results "
                          "than its first one: it hangs on something that its arguments do not "
                          "say (a counter, a generator of its own, numpy's, an attribute, a "
                          "context variable or a mode that is set in compute)")

    def check(self) -> None:
        """Refused, where inputs, results, parameters or modes are others than after the first run:
        what a second run makes would differ."""
        views, self._views = self._views, []
        if any(version_of(each) != version for each, version in views):
            raise Refused(f"firn.relay: layer {self._layer} returned tensors that share memory, "
                          "and one of them was changed in place: return clones, or change a copy")
        if [version_of(each) for each in self._tensors] != self._versions:
            raise Refused(f"firn.relay: an input of layer {self._layer} was changed in place after "
                          "its forward pass: the layer cannot run again")
        if _parameters_version(self._layer) != self._parameters:
            raise Refused(f"firn.relay: parameters of layer {self._layer} were changed between its "
                          "forward and its backward pass")
        written = self._buffers.changed()
        if written is not None:
            raise Refused(f"firn.relay: buffer {written} of layer {self._layer} was changed "
                          "between its forward and its backward pass: give it to the layer as an "
                          "argument")
        if self._layer.module.training != self._training:
            raise Refused(f"firn.relay: layer {self._layer} was switched between train() and "
                          "eval() before its backward pass")


class _Gate:
    """Tensors that pass hand no gradient on while it is shut."""

    def __init__(self) -> None:
        self.is_shut = False

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            passed: torch.Tensor = _Passage.apply(self, tensor)  # type: ignore[no-untyped-call]
        return passed

    @contextlib.contextmanager
    def shut(self) -> Iterator[None]:
        self.is_shut = True
        try:
            yield
        finally:
            self.is_shut = False


class _Passage(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, gate: _Gate, tensor: torch.Tensor) -> torch.Tensor:
        context.gate = gate
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return None, None if context.gate.is_shut else gradient


def hooks_of(tensors: Sequence[torch.Tensor]) -> tuple[int, int]:
    """How many hooks they have, and how many retain their gradients."""
    return (sum(len(each._backward_hooks or ()) for each in tensors if each.requires_grad),
            sum(each.grad_fn is not None and each.retains_grad for each in tensors))


def hooked(layer: Layer) -> Refused:
    return Refused(f"firn.relay: layer {layer} registers a hook on an argument (register_hook, "
                   "retain_grad), which would see the gradient of the layer alone: register it "
                   "outside of the layer, or on a result of an operator in it")


class Buffers:
    """Of a layer, as of now."""

    def __init__(self, layer: Layer) -> None:
        self._layer, self._before = layer, dict(layer.module.named_buffers())
        self._versions = [version_of(each) for each in self._before.values()]

    def changed(self) -> str | None:
        """The name of one that has been written since, or that is another tensor or gone."""
        now = dict(self._layer.module.named_buffers())
        return next((name for (name, buffer), version in zip(self._before.items(), self._versions)
                     if now.get(name) is not buffer or version_of(buffer) != version), None)

    def check(self) -> None:
        """Refused is a layer that has changed one."""
        name = self.changed()
        if name is not None:
            raise Refused(
                f"firn.relay: layer {self._layer} changes its buffer {name} in each forward pass: "
                "a second run would change it twice (running statistics: "
                "track_running_stats=False, or eval() of that module)")


class Contributions:
    """The contributions of operators to one leaf's gradient, in their order: `count`, of which the
    last is the sum of all beyond."""

    def __init__(self, tensor: torch.Tensor, count: int) -> None:
        self.tensor, self.count = tensor, count
        self._found: Gradients = []

    def add(self, gradient: torch.Tensor) -> None:
        if len(self._found) < self.count:
            self._found.append(gradient)
        else:
            last = self._found[-1]
            assert last is not None
            self._found[-1] = last + gradient

    def add_first(self, gradient: torch.Tensor) -> None:
        """(Of a result, which the graph around the layer gives before the layer's operators do.)"""
        if len(self._found) < self.count:
            self._found.insert(0, gradient)
        else:
            first = self._found[0]
            assert first is not None
            self._found[0] = gradient + first

    def padded(self) -> Gradients:
        return self._found + [None] * (self.count - len(self._found))


def take(wanted: Sequence[Contributions], results: Sequence[torch.Tensor]) -> None:
    """From now on what would be added to the leaves' gradients goes to `wanted` instead: a hook
    after each operator that gives to one of them."""
    if not wanted:
        return
    ends = {torch.autograd.graph.get_gradient_edge(each.tensor).node: each for each in wanted}
    for node in nodes_behind(results):
        at = {number: ends[edge[0]] for number, edge in enumerate(node.next_functions)
              if edge[0] in ends}
        if at:
            node.register_hook(_taker(at))


def _taker(at: dict[int, Contributions]) -> Callable[..., Any]:
    def hook(inputs: Any, outputs: Any) -> Any:
        for number, contributions in at.items():
            if inputs[number] is not None:
                contributions.add(inputs[number])
        return tuple(None if number in at else each for number, each in enumerate(inputs))
    return hook


def nodes_behind(results: Sequence[torch.Tensor]) -> list[Any]:
    """All nodes of the graph of `results`."""
    waiting = [each.grad_fn for each in results if each.grad_fn is not None]
    seen = set(waiting)
    found = []
    while waiting:
        node = waiting.pop()
        found.append(node)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def version_of(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _memory_of(tensor: torch.Tensor) -> int:
    """The same number for tensors of one storage."""
    strided = tensor.layout is torch.strided
    return tensor.untyped_storage()._cdata if strided else id(tensor)


def _parameters_version(layer: Layer) -> int:
    return sum(map(version_of, layer.module.parameters()))


class Call:
    """A layer's call, over one run or over the chunks of a batch (chunks.py)."""

    _node: Any  # the autograd.Function that it is

    def __init__(self, layer: Layer, run: Any, uses: Sequence[int], shared: Sequence[torch.Tensor],
                 needed: Sequence[bool], before: Callable[[Call], None],
                 inside: Callable[[], ContextManager[None]],
                 after: Callable[[Layer], None]) -> None:
        self.layer, self._run, self._uses, self._shared = layer, run, uses, shared
        self._needed = list(needed)
        self._which = [at for at, needs in enumerate(needed) if needs]
        self._before, self._inside, self._after = before, inside, after

    def __call__(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The result of the layer, in which what needs gradients comes from the node."""
        result: list[torch.Tensor] = []
        edges = [each for each, count in zip(
            [*(each for each in tensors if each.requires_grad), *self._shared], self._uses)
            for _ in range(count)]
        anchor = torch.empty(0, requires_grad=True)  # (parameters alone may need gradients)
        out = self._node.apply(self, result, anchor, *edges)
        structure = self._structure
        for at, each in zip(self._which, out):
            result[at] = each
        return trees.together(structure, result)

    def forward(self, result: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        self._structure = self._run.forward(result)
        self.layer.forwards += 1
        if self._run.needed != self._needed:
            raise Refused(f"firn.relay: layer {self.layer} returned other tensors that need "
                          "gradients than before, for arguments of the same kinds")
        return tuple(result[at] for at in self._which)

    def backward(self, gradients: Sequence[torch.Tensor | None]) -> Gradients:
        if self._run is None:
            raise Refused(f"firn.relay: a second backward pass through layer {self.layer} "
                          "(retain_graph=True): its inputs are gone")
        if not torch.autograd._is_checkpoint_valid():  # type: ignore[no-untyped-call]
            raise Refused("firn.relay: torch.autograd.grad() and backward(inputs=...) cannot pass "
                          f"layer {self.layer}: use backward() without inputs")
        self._before(self)
        run, self._run = self._run, None
        with self._inside():
            found = run.backward(self._uses, self._shared, self._which, gradients)
        self.layer.backwards += 1
        self._after(self.layer)
        return [each for contributions in found for each in contributions]


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, call: Call, result: list[torch.Tensor],
                *edges: torch.Tensor) -> tuple[torch.Tensor, ...]:
        context.set_materialize_grads(False)
        context.call = call
        return call.forward(result)

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: torch.Tensor | None) -> Any:
        return (None, None, None, *context.call.backward(gradients))


Call._node = _Node


def call_of(node: Any) -> Call | None:
    """The call that the node is of, if it is a layer's."""
    kind: Any = _Node._backward_cls
    found: Call | None = node.call if isinstance(node, kind) else None
    return found
