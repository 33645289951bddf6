"""Tensors of a device that the CPU uses where Firn has their bytes: in pinned host memory."""

from __future__ import annotations

import ctypes
from types import TracebackType

import torch

INVALID, OUT_OF_MEMORY, HOST_OUT_OF_MEMORY = 1, 2, 3  # firn::Code


class OnHost:
    """See firn.on_host()."""

    def __init__(self, library: ctypes.CDLL | None, tensor: torch.Tensor, write: bool) -> None:
        if library is None or not tensor.is_cuda:
            raise RuntimeError("firn.on_host() takes a tensor of a CUDA device, where Firn is the "
                               "allocator (PYTORCH_CUDA_ALLOC_CONF=backend:firn)")
        storage = tensor.untyped_storage()
        if tensor.layout is not torch.strided or \
                tensor.numel() * tensor.element_size() != storage.nbytes():
            raise ValueError("firn.on_host() takes a tensor that is all of its storage, in any "
                             "order of dimensions; this one has %d of %d bytes" % (
                                 tensor.numel() * tensor.element_size(), storage.nbytes()))
        self._library, self._tensor, self._write = library, tensor, write
        self._address = 0
        self._name: int | None = None

    def __enter__(self) -> list[torch.Tensor]:
        if self._name is not None:
            raise RuntimeError("firn.on_host(): entered twice")
        from firn._addresses import storage_address
        self._address = storage_address(self._tensor.untyped_storage())
        name, count = ctypes.c_uint64(), ctypes.c_size_t()
        error = ctypes.create_string_buffer(1024)
        code = self._library.firn_torch_on_host(
            self._address, int(self._write), ctypes.byref(name), ctypes.byref(count), error,
            len(error))
        if code:
            words = "firn: " + error.value.decode(errors="replace")
            if code == HOST_OUT_OF_MEMORY:
                raise MemoryError(words)
            raise (torch.cuda.OutOfMemoryError if code == OUT_OF_MEMORY else RuntimeError)(words)
        self._name = name.value
        flat = (ctypes.c_uint64 * (3 * count.value))()
        self._library.firn_torch_host_pieces(flat)
        # (The last piece may be rounded up, as the block is.)
        left, pieces = self._tensor.untyped_storage().nbytes(), []
        for i in range(count.value):
            length = min(flat[3 * i + 1], left)
            left -= length
            if length:
                memory = (ctypes.c_char * length).from_address(flat[3 * i + 2])
                pieces.append(torch.frombuffer(memory, dtype=self._tensor.dtype))
        return pieces

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        name, self._name = self._name, None
        if name is None:
            return
        self._library.firn_torch_end_on_host(self._address, name)
        if self._write:
            torch.autograd.graph.increment_version(self._tensor)
