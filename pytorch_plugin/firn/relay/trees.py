"""Arguments and results of a layer: the tensors in them, and the same structure around others.

Known are tuples, lists, dictionaries and transformers' ModelOutput, of tensors and of plain values.
Anything else may keep state that a second run of the layer would change again: it is refused.
"""

from __future__ import annotations

import collections
import enum
import types
from typing import Any, NamedTuple, Sequence

import torch


class Refused(RuntimeError):
    """The relay cannot run this model, optimizer or call with the bits of the plain loop: the text
    says why, and which argument or setting changes it."""


class Slot(NamedTuple):
    """Stands for tensor number `at`."""

    at: int


class Branch(NamedTuple):
    kind: type
    keys: tuple[Any, ...] | None  # None: a sequence
    items: tuple[Any, ...]


_PLAIN = (int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, torch.layout,
          torch.memory_format, enum.Enum, range, slice, type(None), type(...), type,
          types.FunctionType, types.BuiltinFunctionType, torch.nn.Module)


def _is_model_output(kind: type) -> bool:
    return issubclass(kind, collections.OrderedDict) and hasattr(kind, "to_tuple")


def apart(value: Any, tensors: list[torch.Tensor], where: str) -> Any:
    """Appends the tensors of `value` to `tensors`, each once, and returns the structure, for
    together(). Refused, by its type and `where`, is what is not known."""
    if isinstance(value, torch.Tensor):
        for at, other in enumerate(tensors):
            if other is value:
                return Slot(at)
        tensors.append(value)
        return Slot(len(tensors) - 1)
    kind = type(value)
    if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return Branch(kind, None, tuple(apart(each, tensors, where) for each in value))
    if kind in (dict, collections.OrderedDict) or _is_model_output(kind):
        return Branch(kind, tuple(value),
                      tuple(apart(each, tensors, where) for each in value.values()))
    if isinstance(value, _PLAIN):
        return value
    hint = " (use_cache=False leaves it out)" if "Cache" in kind.__name__ else ""
    raise Refused(f"firn.relay: {where} a {kind.__module__}.{kind.__qualname__}, which may hold "
                  f"state that a second run of the layer changes again{hint}")


def outline(structure: Any) -> Any:
    """Of a structure what tells kinds of calls apart: numbers are as good as others."""
    if isinstance(structure, Branch):
        return structure.kind, structure.keys, tuple(map(outline, structure.items))
    known = isinstance(structure, (Slot, bool, str, type(None)))
    return structure if known else type(structure)


def together(structure: Any, tensors: Sequence[Any]) -> Any:
    """The inverse of apart(), with `tensors` in the places of those that were in it."""
    if isinstance(structure, Slot):
        return tensors[structure.at]
    if not isinstance(structure, Branch):
        return structure
    items = [together(each, tensors) for each in structure.items]
    if structure.keys is None:
        return structure.kind(*items) if hasattr(structure.kind, "_fields") \
            else structure.kind(items)
    if _is_model_output(structure.kind):
        return structure.kind(**dict(zip(structure.keys, items)))
    return structure.kind(zip(structure.keys, items))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors of any value, as far as its structure is known."""
    found: list[torch.Tensor] = []
    try:
        apart(value, found, "")
    except Refused:
        pass
    return found
