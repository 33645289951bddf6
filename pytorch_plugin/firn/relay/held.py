"""The values that an optimizer or a group of it holds: do they change, and how they are put back.

Known are numbers and other values that never change by themselves, tensors, lists, tuples and
dictionaries of these, and objects of Python classes that hold these. (Modules are taken for
values.) An object of any other kind may change in ways that nobody sees from outside.
"""

from __future__ import annotations

import collections
import enum
import sys
import types
from typing import Any, Collection

import torch
from torch import nn

from firn.relay.sameness import equal

_FIXED = (int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, enum.Enum, range,
          type(None), type, types.FunctionType, types.MethodType, types.BuiltinFunctionType,
          types.ModuleType, nn.Parameter, nn.Module)


_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: of classes that are written in Python


class Unknown(Exception):
    """A value that cannot be put back: the text has its name and its type."""


class Held:
    """The values of `holder` (an object's attributes, a group), but those named `without`. Owns
    copies of tensors. Unknown, where one of them cannot be put back."""

    def __init__(self, holder: dict[str, Any], without: Collection[str] = ()) -> None:
        self._holder, self._without = holder, without
        seen: set[int] = set()
        self._before = {key: _kept(value, key, seen) for key, value in holder.items()
                        if key not in without}

    def changed(self) -> list[str]:
        """The names of values that are others now, and of those that are new or gone."""
        now = {key: value for key, value in self._holder.items() if key not in self._without}
        return [key for key in {**self._before, **now}
                if not (key in now and key in self._before and _same(self._before[key], now[key]))]

    def put_back(self) -> None:
        for key in self._holder.keys() - self._before.keys() - set(self._without):
            del self._holder[key]
        for key, (value, copied) in self._before.items():
            self._holder[key] = _put_back(value, copied)


def _kept(value: Any, name: str, seen: set[int]) -> tuple[Any, Any]:
    """The value itself, and a copy of what it holds; of objects in `seen` not once more."""
    kind = type(value)
    if id(value) in seen or isinstance(value, _FIXED) or _is_number(value):
        return value, None
    if isinstance(value, torch.Tensor):
        return value, value.detach().clone()
    if kind is not tuple:
        seen.add(id(value))
    if kind in (list, tuple):
        return value, [_kept(each, f"{name}[{at}]", seen) for at, each in enumerate(value)]
    if kind in (dict, collections.OrderedDict, collections.defaultdict) and \
            not any(isinstance(key, torch.Tensor) for key in value):
        return value, {key: _kept(each, f"{name}[{key!r}]", seen) for key, each in value.items()}
    if kind.__flags__ & _HEAP and kind.__base__ is object and hasattr(value, "__dict__"):
        return value, {key: _kept(each, f"{name}.{key}", seen)
                       for key, each in vars(value).items()}
    raise Unknown(f"{name!r}, a {kind.__module__}.{kind.__qualname__}")


def _is_number(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _same(kept: tuple[Any, Any], now: Any) -> bool:
    value, copied = kept
    if copied is None:
        return value is now or (type(value) is type(now) and bool(value == now))
    if type(value) is not type(now):
        return False
    if isinstance(copied, torch.Tensor):
        return equal(copied, now)
    if isinstance(copied, dict):
        now = now if isinstance(now, dict) else vars(now)
        return copied.keys() == now.keys() and \
            all(_same(each, now[key]) for key, each in copied.items())
    return len(copied) == len(now) and all(map(_same, copied, now))


def _put_back(value: Any, copied: Any) -> Any:
    """The same object, with what it held."""
    if isinstance(copied, torch.Tensor):
        with torch.no_grad():
            value.copy_(copied)
    elif isinstance(copied, dict):
        before = {key: _put_back(*each) for key, each in copied.items()}
        holder = value if isinstance(value, dict) else vars(value)
        holder.clear()
        holder.update(before)
    elif isinstance(value, list):
        value[:] = [_put_back(*each) for each in copied]
    elif isinstance(value, tuple):
        for each in copied:
            _put_back(*each)
    return value
