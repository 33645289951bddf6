"""A model's attributes: all that its modules keep beside parameters, buffers and children."""

from __future__ import annotations

import collections
from typing import Any

import torch
from torch import nn

_TORCHS = frozenset(vars(nn.Module())) | {"forward"}


class Attributes:
    """Of all modules, as of now. Owns references to them. `called`: the model, in names."""

    def __init__(self, model: nn.Module, called: str = "the model") -> None:
        self._model, self._called, self._before = model, called, _of(model, called)
        self._written = _written(self._before)
        self._values = {(module, key): value for module in model.modules()
                        for key, value in vars(module).items() if key not in _TORCHS}

    def changed(self) -> list[str]:
        """The names of those that are other objects now."""
        now = _of(self._model, self._called)
        return [name for name in {**self._before, **now} if name not in now
                or name not in self._before or now[name] is not self._before[name]]

    def changed_in_place(self) -> list[str]:
        """The names of tensors that have been written, and of lists, dictionaries and sets with
        other objects in them."""
        now = _written(self._before)
        return [name for name, value in self._written.items() if now[name] != value]

    def put_back(self) -> None:
        """The same objects as then, and no others."""
        for module in self._model.modules():
            for key in [key for key in vars(module)
                        if key not in _TORCHS and (module, key) not in self._values]:
                del vars(module)[key]
        for (module, key), value in self._values.items():
            vars(module)[key] = value


def _of(model: nn.Module, called: str) -> dict[str, Any]:
    return {f"{key!r} of {name or called}": value
            for name, module in model.named_modules()
            for key, value in vars(module).items() if key not in _TORCHS}


def _written(attributes: dict[str, Any]) -> dict[str, Any]:
    """Something that is another when the value has been changed in place."""
    found: dict[str, Any] = {}
    for name, value in attributes.items():
        if isinstance(value, torch.Tensor):
            found[name] = 0 if value.is_inference() else value._version
        elif isinstance(value, dict):
            found[name] = [(id(key), id(each)) for key, each in value.items()]
        elif isinstance(value, (list, set, collections.deque)):
            found[name] = list(map(id, value))
    return found
