"""The repeated layers of a model, and their forward methods.

A layer is one of the modules of a ModuleList or Sequential of which two and more have the same
class and agree in the shapes of the parameters that they both have: transformers' blocks, torch's
encoders, the blocks of most models that people write.
"""

from __future__ import annotations

import copy
import functools
import types
import weakref
from typing import Any, Callable, Hashable, Iterable, Sequence

from torch import nn

from firn.relay.trees import Refused


class Layer:
    """One of them: its parameters, and what is known of its runs.

    own: the trainable parameters that nothing else uses; shared: the trainable ones that something
    outside of this layer's forward method uses too, or that a forward uses in more than one run."""

    def __init__(self, name: str, module: nn.Module, number: int) -> None:
        self.name, self.module, self.number = name, module, number
        self.forward: Callable[..., Any] = module.forward
        self.own: list[nn.Parameter] = []
        self.shared: list[nn.Parameter] = []
        self.kept = False        # its graph is kept: no second run
        self.seen: dict[Hashable, Any] = {}  # watch.Seen by kind of call
        self.forwards = self.backwards = 0   # in this step
        self.updated = False                 # in this step
        self.runs = 0            # that a second run follows, in all steps
        self.look: Callable[[], None] | None = None  # called when its graph is there again

    def trainable(self) -> list[nn.Parameter]:
        return [each for each in self.module.parameters() if each.requires_grad]

    def share(self, parameter: nn.Parameter) -> None:
        """It is used outside of the layer, or in several of its runs."""
        if all(each is not parameter for each in self.shared):
            self.shared.append(parameter)
        self.own = [each for each in self.own if each is not parameter]

    def begin_step(self) -> None:
        self.forwards = self.backwards = 0
        self.updated = False

    def __str__(self) -> str:
        return f"{self.name} ({type(self.module).__name__})"


# torch.export and torch.jit.script read this of a forward method, to compile its source.
_LOOKED_AT = ("__code__", "__globals__", "__closure__", "__defaults__", "__kwdefaults__")


class Forward:
    """Stands in for a layer's forward method. A deep copy of the module, and one that is saved,
    have their class's own. (A shallow copy, copy.copy(), shares it: it runs the layer itself.)"""

    def __init__(self, layer: Layer, run: Callable[..., Any]) -> None:
        self._before = layer.module.__dict__.get("forward")
        self._module, self._layer, self._run = weakref.ref(layer.module), layer, run
        functools.update_wrapper(self, layer.forward)
        for name in _LOOKED_AT:
            if hasattr(layer.forward, name):
                self.__dict__[name] = getattr(layer.forward, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self._layer, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        module = self._module()
        if self._before is not None:
            return copy.deepcopy(self._before, memo)
        assert module is not None
        return types.MethodType(type(module).forward, memo[id(module)])

    def __reduce__(self) -> Any:
        if self._before is not None:
            return _itself, (self._before,)
        return getattr, (self._module(), "forward")  # before it has attributes: its class's

    @property
    def owner(self) -> Any:
        """The relay."""
        return self._run.__self__  # type: ignore[attr-defined]

    def remove(self) -> None:
        module = self._module()
        if module is not None and module.__dict__.get("forward") is self:
            del module.__dict__["forward"]
            if self._before is not None:
                module.__dict__["forward"] = self._before


def _itself(value: Any) -> Any:
    return value


def find(model: nn.Module, wanted: Sequence[nn.Module | str] | None) -> list[Layer]:
    """The layers, in the order of model.modules(); of `wanted`, where that is given: modules of the
    model, or their names. Refused, where there are none."""
    names = {module: name for name, module in model.named_modules()}
    if isinstance(wanted, str):
        raise ValueError(f"firn.relay: layers={wanted!r}: a list of modules or of their names, "
                         f"[{wanted!r}]")
    if wanted is not None:
        named = dict(model.named_modules())
        for each in wanted:
            if isinstance(each, str) and each not in named:
                raise ValueError(f"firn.relay: layers=: the model has no module {each!r}")
        modules = [named[each] if isinstance(each, str) else each for each in wanted]
        for module in modules:
            if module not in names:
                raise ValueError(f"firn.relay: layers=: a {type(module).__name__} is no module of "
                                 "the model")
    else:
        modules = repeated(model)
    modules = list(dict.fromkeys(modules))
    if not modules:
        raise Refused(f"firn.relay: {type(model).__name__} has no ModuleList or Sequential of "
                      "modules that repeat: name them with layers=[...]")
    for module in modules:
        inner = set(module.modules()) - {module}
        for other in modules:
            if other in inner:
                raise Refused(f"firn.relay: layers=: {names[other]} is a part of {names[module]}")
    return [Layer(names[module], module, number) for number, module in enumerate(modules)]


def repeated(model: nn.Module) -> list[nn.Module]:
    """The modules that are taken for layers where none are named."""
    found: list[nn.Module] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if module in inside or not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        kinds: dict[type, list[nn.Module]] = {}
        for child in module:
            kinds.setdefault(type(child), []).append(child)
        for alike in kinds.values():
            if len(alike) >= 2 and _agree(alike):
                found += alike
                inside.update(*(each.modules() for each in alike))
    return found


def _agree(modules: Iterable[nn.Module]) -> bool:
    """(A first layer may have more: T5's has the relative positions. Layers with other shapes are
    the stages of a pyramid.)"""
    shapes = [{name: value.shape for name, value in each.named_parameters()} for each in modules]
    first = shapes[0]
    return all(each.keys() & first.keys() and
               all(each[name] == first[name] for name in each.keys() & first.keys())
               for each in shapes)


def share_out(model: nn.Module, layers: Sequence[Layer]) -> None:
    """Each layer's parameters as its own and as shared ones, by which modules hold them."""
    holders: dict[nn.Parameter, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                holders[parameter] = holders.get(parameter, 0) + 1
    for layer in layers:
        inside: dict[nn.Parameter, int] = {}
        for module in layer.module.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    inside[parameter] = inside.get(parameter, 0) + 1
        shared = set(layer.shared) | {each for each in inside if inside[each] != holders[each]}
        layer.shared = [each for each in layer.trainable() if each in shared]
        layer.own = [each for each in layer.trainable() if each not in shared]


def relay_of(model: nn.Module) -> Any:
    """The relay whose forward methods the model's layers have; None where they have their own."""
    return next(iter(relays_of(model)), None)


def relays_of(model: nn.Module) -> list[Any]:
    """All such relays."""
    forwards = [each.__dict__.get("forward") for each in model.modules()]
    return list(dict.fromkeys(each.owner for each in forwards if isinstance(each, Forward)))
