"""Copies between a device and host memory, on a stream of their own.

Stream order: what goes down is copied behind all that the caller's current stream has; what goes
up is behind what went down before it, and join() lets the caller's stream wait for it. On the CPU
nothing goes down, and there is no stream.
"""

from __future__ import annotations

from typing import Callable, Sequence

import torch


Marks = list[torch.Tensor]  # one number each, on the device


def _mark(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of its bits, taken for integers: another one, where something has been written.
    (Types stay, so that sums make no copy.)"""
    bits = tensor.detach()
    size = bits.element_size()
    if size == 2 and bits.is_contiguous() and bits.numel() % 2 == 0:
        bits = bits.view(-1).view(torch.int32)
    else:
        bits = bits.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[size])
    return bits.sum(dtype=bits.dtype).to(torch.int64)


class Down:
    """Tensors on their way to host memory. Owns what they are copied from until wait()."""

    def __init__(self, tensors: Sequence[torch.Tensor], sources: Sequence[torch.Tensor],
                 event: torch.cuda.Event | None) -> None:
        self._tensors, self._sources, self._event = list(tensors), list(sources), event

    def wait(self) -> list[torch.Tensor]:
        """The tensors in host memory, once they are there."""
        if self._event is not None:
            self._event.synchronize()
        self._sources = []
        return self._tensors


class Link:
    """Of one device, "cuda" or "cpu". Calls `say` once, where memory cannot be pinned."""

    def __init__(self, device: torch.device, say: Callable[[str], None]) -> None:
        self.device, self._say = device, say
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pins = self._stream is not None

    def empty(self, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Host memory of the shape and strides of `like`, pinned where that is possible."""
        if self._pins:
            try:
                return torch.empty_like(like, dtype=dtype, device="cpu", pin_memory=True,
                                        requires_grad=False)
            except RuntimeError as error:
                self._pins = False
                self._say(f"host memory cannot be pinned ({str(error).splitlines()[0]}): updates "
                          "at the host go through pageable memory, slowly (ulimit -l, the "
                          "machine's memory; where='device')")
        return torch.empty_like(like, dtype=dtype, device="cpu", requires_grad=False)

    def down(self, tensors: Sequence[torch.Tensor], like: Sequence[torch.Tensor]) -> Down:
        """Begins to copy `tensors`, with the strides of `like`; on the CPU these are themselves."""
        if self._stream is None:
            return Down(tensors, (), None)
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.no_grad(), torch.cuda.stream(self._stream):
            there = [self.empty(shape, each.dtype) for each, shape in zip(tensors, like)]
            for one, each in zip(there, tensors):
                one.copy_(each, non_blocking=True)
            return Down(there, tensors, self._stream.record_event())

    def up(self, tensors: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]) -> Marks:
        """Begins to copy `tensors` of host memory into `parameters`, of any thread. Returns their
        marks then."""
        with torch.no_grad(), torch.cuda.stream(self._stream):  # (None: no stream is chosen)
            for each, parameter in zip(tensors, parameters):
                parameter.copy_(each, non_blocking=self._stream is not None)
            return list(map(_mark, parameters))

    def marks(self, tensors: Sequence[torch.Tensor]) -> Marks:
        """As of what the caller's current stream has."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.no_grad(), torch.cuda.stream(self._stream):
            return list(map(_mark, tensors))

    def differ(self, tensors: Sequence[torch.Tensor], marks: Marks) -> Down:
        """Begins to compare: whether the tensors have other marks by now, one number each."""
        if not tensors:
            return Down((), (), None)
        now = self.marks(tensors)
        with torch.no_grad(), torch.cuda.stream(self._stream):
            others = torch.stack(now) != torch.stack(marks)
            if self._stream is None:
                return Down([others], (), None)
            there = self.empty(others, others.dtype).copy_(others, non_blocking=True)
            return Down([there], [others, *now], self._stream.record_event())

    def fetch(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies in host memory, of any thread; returns when they are there."""
        with torch.no_grad(), torch.cuda.stream(self._stream):
            return [each.detach().to("cpu", copy=True) for each in tensors]

    def join(self) -> None:
        """The caller's current stream waits for all copies."""
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
