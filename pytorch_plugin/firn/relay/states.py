"""Masters and states in Firn's memory, stepped by the CPU in the pieces in which Firn has them.

They are tensors of the device that no kernel uses: their bytes are in Firn's host memory, or on the
SSD, and firn.on_host() gives them piece by piece. The optimizer steps the pieces as parameters of
their own, which is the step of the whole where each element is updated by itself.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import itertools
from typing import Any, Sequence

import torch
from torch import nn

import firn
from firn.relay.sameness import equal
from firn.relay.trees import Refused

LEAST_BYTES = 1 << 20  # smaller blocks do not leave the device by themselves
BY_ELEMENT = (torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adam, torch.optim.Adamax,
              torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop,
              torch.optim.Rprop, torch.optim.SGD)


def check(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    """Refused is what cannot have its states there."""
    if type(optimizer) not in BY_ELEMENT:
        raise Refused(f"firn.relay: states='firn' steps parts of a parameter by themselves, which "
                      f"is proven of torch's {', '.join(each.__name__ for each in BY_ELEMENT)}; "
                      f"not of {type(optimizer).__name__}: states='pinned'")
    if device.type != "cuda" or not firn.enabled():
        raise Refused("firn.relay: states='firn' needs parameters on a CUDA device, and Firn as "
                      "the allocator (PYTORCH_CUDA_ALLOC_CONF=backend:firn): states='pinned'")


def is_there(master: torch.Tensor) -> bool:
    return master.is_cuda


def belongs_there(parameter: torch.Tensor, dtype: torch.dtype) -> bool:
    return parameter.numel() * dtype.itemsize >= LEAST_BYTES


def read(master: torch.Tensor, value: torch.Tensor) -> None:
    """`value`, of the CPU, with the strides of `master`, is its value now; where the cast of the
    master is that already, it stays."""
    parts: list[torch.Tensor] = []
    with firn.on_host(master) as pieces:
        parts = _cut(_flat(value), [each.numel() for each in pieces])
        if all(equal(piece.to(part.dtype), part) for piece, part in zip(pieces, parts)):
            return
    with firn.on_host(master, write=True) as pieces:
        for piece, part in zip(pieces, parts):
            piece.copy_(part)


class Used:
    """A master, one of the optimizer's parameters, and its states, in host memory until close().
    MemoryError where that cannot hold them."""

    def __init__(self, master: nn.Parameter, states: dict[str, Any]) -> None:
        self.parameter, self.states = master, states
        self.wide = {name: each for name, each in states.items()
                     if isinstance(each, torch.Tensor) and each.is_cuda}
        self._uses = contextlib.ExitStack()
        with self._uses:
            self.pieces = self._uses.enter_context(firn.on_host(master, write=True))
            self.of_states = {name: self._uses.enter_context(firn.on_host(each, write=True))
                              for name, each in self.wide.items()}
            self._uses = self._uses.pop_all()

    def close(self) -> None:
        self.pieces, self.of_states = [], {}
        self._uses.close()


class Ahead:
    """Uses of the optimizer's `masters`, one after the other: while one is stepped, the next one
    is gathered, by a thread, where host memory can hold both."""

    def __init__(self, optimizer: torch.optim.Optimizer, masters: Sequence[nn.Parameter]) -> None:
        self._left = collections.deque((each, optimizer.state.get(each, {})) for each in masters)
        self._next: concurrent.futures.Future[Used | None] | None = None
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "firn.relay ahead")

    def __enter__(self) -> Ahead:
        return self

    def take(self) -> Used:
        """The next one's, which the caller closes."""
        used = self._taken()
        master, states = self._left.popleft()
        if used is None:
            used = Used(master, states)
        if self._left and states and self._left[0][1]:  # (The first step makes states beside it.)
            self._next = self._thread.submit(_used_if_there_is_room, *self._left[0])
        return used

    def _taken(self) -> Used | None:
        begun, self._next = self._next, None
        return begun.result() if begun is not None else None

    def __exit__(self, *_: Any) -> None:
        try:
            used = self._taken()
            if used is not None:
                used.close()
        finally:
            self._thread.shutdown()


def _used_if_there_is_room(master: nn.Parameter, states: dict[str, Any]) -> Used | None:
    try:
        return Used(master, states)
    except MemoryError:
        return None


def step(optimizer: torch.optim.Optimizer, used: Used, gradient: torch.Tensor,
         value: torch.Tensor) -> None:
    """One step of the master, with `gradient`; `value` becomes its value. Both are of the CPU, of any
    type, with the strides of the master. Ends the use."""
    master, states, wide = used.parameter, used.states, used.wide
    with contextlib.closing(used):
        lengths = _lengths([used.pieces, *used.of_states.values()])
        chunks = [nn.Parameter(each) for each in _parts(used.pieces, lengths)]
        views = {name: _parts(pieces, lengths) for name, pieces in used.of_states.items()}
        for i, (chunk, part) in enumerate(zip(chunks, _cut(_flat(gradient), lengths))):
            chunk.grad = part.to(chunk.dtype)
            if states:
                optimizer.state[chunk] = {
                    name: views[name][i] if name in views else _copy(each)
                    for name, each in states.items()}
        try:
            _step_chunks(optimizer, master, chunks)
        finally:
            found = [optimizer.state.pop(chunk, {}) for chunk in chunks]
        with torch.no_grad():
            for part, chunk in zip(_cut(_flat(value), lengths), chunks):
                part.copy_(chunk)
            for name, parts in views.items():
                for part, each in zip(parts, found):
                    if each[name] is not part:
                        part.copy_(each[name])
        del chunks, views
    optimizer.state[master] = {name: wide[name] if name in wide else _kept(name, found, master)
                               for name in found[0]}


def _step_chunks(optimizer: torch.optim.Optimizer, master: nn.Parameter,
                 chunks: Sequence[nn.Parameter]) -> None:
    """One step(), with `chunks` in the place of all parameters. The groups are as before."""
    groups = optimizer.param_groups
    every = list(groups)
    (group,) = [each for each in every if any(one is master for one in each["params"])]
    params = group["params"]
    try:
        group["params"] = list(chunks)
        groups[:] = [group]
        optimizer.step()
    finally:
        group["params"] = params
        groups[:] = every


def _kept(name: str, found: Sequence[dict[str, Any]], master: torch.Tensor) -> Any:
    """Of all chunks' states: a new one that has the master's elements goes to Firn's memory."""
    first = found[0][name]
    if not isinstance(first, torch.Tensor) or first.dim() == 0:
        return first
    made = torch.zeros_like(master, dtype=first.dtype, requires_grad=False)
    parts = [each[name] for each in found]
    with torch.no_grad(), firn.on_host(made, write=True) as pieces:
        lengths = _lengths([pieces, parts])
        for to, each in zip(_parts(pieces, lengths), _parts(parts, lengths)):
            to.copy_(each)
    return made


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All its elements, in the order of its storage."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _cut(tensor: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    return list(torch.split(tensor, list(lengths)))


def _lengths(lists: Sequence[Sequence[torch.Tensor]]) -> list[int]:
    """Of parts, none of which lies in two pieces of a list."""
    ends = sorted({end for pieces in lists
                   for end in itertools.accumulate(each.numel() for each in pieces)})
    return [end - begin for begin, end in zip([0, *ends], ends)]


def _parts(pieces: Sequence[torch.Tensor], lengths: Sequence[int]) -> list[torch.Tensor]:
    parts: list[torch.Tensor] = []
    rest = iter(lengths)
    for piece in pieces:
        at = 0
        while at < piece.numel():
            length = next(rest)
            parts.append(piece[at:at + length])
            at += length
    return parts
