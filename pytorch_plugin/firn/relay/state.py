"""The state that each thread of PyTorch has, and that a second run of a layer needs as it was."""

from __future__ import annotations

import contextlib
import random
from typing import Iterator, Sequence

import torch
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils import _python_dispatch as dispatch

_KINDS = ("cpu", "cuda")


def _autocast() -> dict[str, torch.dtype]:
    """The kinds of devices for which it is on."""
    return {kind: torch.get_autocast_dtype(kind) for kind in _KINDS
            if torch.is_autocast_enabled(kind)}


class Randomness:
    """The states as of now of torch's generator for the CPU, of Python's random, and of
    `generators`. (Not numpy's: 70 us to read, and as many to write.)"""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self._generators = (torch.default_generator, *generators)
        self._states = [each.get_state() for each in self._generators]
        self._python = random.getstate()

    def put_back(self) -> None:
        for generator, state in zip(self._generators, self._states):
            generator.set_state(state)
        random.setstate(self._python)

    def now(self) -> Randomness:
        return Randomness(self._generators[1:])

    def has_moved(self) -> bool:
        now = self.now()
        return not all(map(torch.equal, self._states, now._states)) or \
            self._python != now._python


class Settings:
    """Autocast and the generators' states, as of now."""

    def __init__(self, generators: Sequence[torch.Generator]) -> None:
        self._randomness = Randomness(generators)
        self._autocast = _autocast()
        self.casts = bool(self._autocast)
        self._cache = torch.is_autocast_cache_enabled()

    @contextlib.contextmanager
    def as_they_were(self) -> Iterator[None]:
        """(Without what is in autocast's cache: weights that were cast without a graph, or in
        another one.)"""
        now_random = self._randomness.now()
        self._randomness.put_back()
        try:
            with contextlib.ExitStack() as stack:
                now = _autocast()
                if self.casts or now:
                    torch.clear_autocast_cache()
                    stack.callback(torch.clear_autocast_cache)
                    for kind, dtype in {**now, **self._autocast}.items():
                        stack.enter_context(torch.autocast(kind, dtype, kind in self._autocast,
                                                           self._cache))
                yield
        finally:
            now_random.put_back()

    @contextlib.contextmanager
    def once_more(self) -> Iterator[None]:
        """With the generators' states as they were, in the same forward pass: autocast's cache
        stays as it is. Nothing has been drawn by it at the end."""
        now = self._randomness.now()
        self._randomness.put_back()
        try:
            yield
        finally:
            now.put_back()

    def put_back(self) -> None:
        """The generators' states, as they were."""
        self._randomness.put_back()

    def has_drawn(self) -> bool:
        """Since as_they_were() began."""
        return self._randomness.has_moved()

    @contextlib.contextmanager
    def without_cache(self) -> Iterator[None]:
        """A weight that is cast without a graph is not kept for operators with one."""
        torch.set_autocast_cache_enabled(False)
        try:
            yield
        finally:
            torch.set_autocast_cache_enabled(self._cache)


class ThreadState:
    """The caller's, to be put into another thread: autocast, gradients, the current device and
    streams, modes of Python, hooks on saved tensors, OpenMP's number of threads. (Context
    variables: baton.py.)"""

    def __init__(self) -> None:
        self._autocast = _autocast()
        self._cache = torch.is_autocast_cache_enabled()
        self._gradients = torch.is_grad_enabled()
        self._threads = torch.get_num_threads()
        self._functions = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
        self._dispatch = dispatch._get_current_dispatch_mode_stack()
        self._saved = torch._C._autograd._top_saved_tensors_default_hooks(True)
        self._streams: list[torch.cuda.Stream] = []
        self._device: int | None = None
        if torch.cuda.is_available() and \
                torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._device = torch.cuda.current_device()
            self._streams = [torch.cuda.current_stream(each)
                             for each in range(torch.cuda.device_count())]

    @contextlib.contextmanager
    def put(self) -> Iterator[None]:
        """For the thread's whole life; backward passes stay in it. (OpenMP's number of threads, by
        which convolutions of the CPU cut their sums, is another one in a new thread.)"""
        torch.set_num_threads(self._threads)
        for stream in self._streams:
            torch.cuda.set_stream(stream)
        if self._device is not None:
            torch.cuda.set_device(self._device)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            stack.enter_context(torch.set_grad_enabled(self._gradients))
            for kind, dtype in self._autocast.items():
                stack.enter_context(torch.autocast(kind, dtype, True, self._cache))
            if self._saved is not None:
                torch._C._autograd._push_saved_tensors_default_hooks(*self._saved)
                stack.callback(torch._C._autograd._pop_saved_tensors_default_hooks)
            for mode in self._dispatch:
                dispatch._push_mode(mode)
                stack.callback(dispatch._pop_mode)
            for function in self._functions:
                _push_mode(function)  # type: ignore[no-untyped-call]
                stack.callback(_pop_mode)
            yield
