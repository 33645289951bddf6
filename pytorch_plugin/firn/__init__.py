"""Firn: GPU memory that ages. Cold blocks leave the GPU for host memory and NVMe, and are back
before the next kernel that uses them.

Nothing has to be imported: PYTORCH_CUDA_ALLOC_CONF=backend:firn,firn_budget:20GiB,... is enough.
This module tells what Firn did, and takes hints. It imports torch only where a tensor is given to
it. Where Firn is not the allocator, everything here works and has no effect.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes
    import os
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Any, Optional, Union

    import torch

    from firn._host_memory import OnHost
    from firn.relay import relay as relay

    # prefetch() and cold() take this.
    Hinted = Optional[Union[torch.Tensor, torch.nn.Module, Mapping[Any, "Hinted"],
                            Iterable["Hinted"]]]

__all__ = ["call_sites", "cold", "enabled", "memory_summary", "no_spill", "on_host", "pin",
           "prefetch", "relay", "report", "stats", "unpin"]


def __getattr__(name: str) -> Any:
    if name == "relay":
        import importlib
        return importlib.import_module("firn.relay")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _plugin() -> ctypes.CDLL | None:
    import sys
    autoload = sys.modules.get("firn._autoload")
    return autoload.plugin() if autoload else None


def enabled() -> bool:
    """Whether Firn is this process's CUDA allocator."""
    return _plugin() is not None


def stats() -> dict[str, Any]:
    """The document that `firn run --stats` writes, as of now: {"pid", "devices": [...], "store":
    {...}}, and {"stalls": {"operators": [{"name", "waits", "seconds"}], "call_sites": [the
    same]}}: waits for memory, the longest first. {} before CUDA has started, and where Firn is not
    the allocator."""
    library = _plugin()
    if library is None:
        return {}
    import json
    from firn._libraries import read_text
    text = read_text(library.firn_torch_stats)
    if not text:
        return {}
    document: dict[str, Any] = json.loads(text)
    document["stalls"] = json.loads(read_text(library.firn_torch_stalls))
    return document


def call_sites(wanted: bool = True) -> None:
    """From now on waits are also counted by line of the program (the innermost that is not
    torch's): stats()["stalls"]["call_sites"]. Costs some microseconds, and Python's lock, for each
    operator that waited; nothing for the others."""
    library = _plugin()
    if library is not None:
        library.firn_torch_call_sites(int(wanted))


def memory_summary(device: int | None = None, abbreviated: bool = False) -> str:
    """A table for each device (or for one), like torch.cuda.memory_summary()'s: what is where, what
    moved, who waited, what stays on the device and why. `abbreviated`: without the latter two."""
    from firn import _tables
    return _tables.summary(stats(), device, abbreviated)


def report(file: str | os.PathLike[str] | None = None) -> str:
    """What moved, what waited and where, what stays on the device and why, what Firn could not see,
    as text to read; also written to `file`, when one is named."""
    from firn import _tables
    text = _tables.report(stats())
    if file is not None:
        with open(file, "w", encoding="utf-8") as out:
            out.write(text + "\n")
    return text


def _storages(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    import torch
    if tensor.layout == torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    else:
        parts = [tensor]
    for part in parts:
        yield part.untyped_storage()


def _hint(name: str, tensor: torch.Tensor, *more: int) -> None:
    library = _plugin()
    if library is None or not tensor.is_cuda:
        return
    import ctypes
    error = ctypes.create_string_buffer(1024)
    from firn._addresses import storage_address
    function = getattr(library, "firn_torch_" + name)
    for storage in _storages(tensor):
        address = storage_address(storage)
        if address and function(address, *more, error, len(error)):
            raise RuntimeError("firn: " + error.value.decode(errors="replace"))


def pin(tensor: torch.Tensor) -> None:
    """Keeps the tensor's storage on the device until unpin(). Counted. For memory that is used
    without PyTorch's operators."""
    _hint("pin", tensor)


def unpin(tensor: torch.Tensor) -> None:
    """Takes one pin() back; without one, takes back that the tensor's address was given away
    (data_ptr(), DLPack, __cuda_array_interface__). Uses so far must be over, or enqueued on the
    current stream. RuntimeError where there is nothing to take back."""
    _hint("unpin", tensor, *_stream(tensor))


def _stream(tensor: torch.Tensor) -> tuple[int, ...]:
    if not enabled() or not tensor.is_cuda:
        return ()
    import torch
    return (torch.cuda.current_stream(tensor.device).cuda_stream,)


def _tensors(name: str, hinted: Hinted) -> Iterator[torch.Tensor]:
    """The tensors in it, in their order. TypeError where there is something else."""
    import torch
    within: Iterable[Hinted]
    if isinstance(hinted, torch.Tensor):
        yield hinted
        return
    if isinstance(hinted, torch.nn.Module):
        within = itertools.chain(hinted.parameters(), hinted.buffers())
    elif isinstance(hinted, Mapping):
        within = hinted.values()
    elif isinstance(hinted, Iterable) and not isinstance(hinted, (str, bytes)):
        within = hinted
    elif hinted is None:
        return
    else:
        raise TypeError("firn.%s() takes a tensor, a torch.nn.Module, or a list, tuple or dict of "
                        "them; not %s" % (name, type(hinted).__name__))
    for each in within:
        yield from _tensors(name, each)


def _hint_at_place(name: str, hinted: Hinted) -> None:
    library = _plugin()
    if library is None:
        return
    import ctypes

    from firn._addresses import storage_address
    ranges: dict[int, int] = {}  # address: bytes. Tensors that share a storage are one.
    for tensor in _tensors(name, hinted):
        if tensor.is_cuda:
            for storage in _storages(tensor):
                ranges[storage_address(storage)] = storage.nbytes()
    ranges.pop(0, None)  # (An empty storage has no address.)
    if not ranges:
        return
    flat = list(itertools.chain.from_iterable(ranges.items()))
    error = ctypes.create_string_buffer(1024)
    function = getattr(library, "firn_torch_" + name)
    if function((ctypes.c_uint64 * len(flat))(*flat), len(ranges), error, len(error)):
        raise RuntimeError("firn: " + error.value.decode(errors="replace"))


def prefetch(hinted: Hinted) -> None:
    """Work that will be queued on the current stream uses these soon: their storages come back,
    ahead of it. `hinted` is a tensor, a torch.nn.Module (its parameters and buffers), or a list,
    tuple or dict of such, also nested; tensors on the CPU, and None, are skipped.

    Acts at its place in the stream, once what was queued there before is done: until then nothing
    leaves for it. (Where there is room already, it begins at the call.) Several hints of a stream
    act in their order. Waits for nothing; ignored while the stream is captured into a graph."""
    _hint_at_place("prefetch", hinted)


def cold(hinted: Hinted) -> None:
    """These are not used again for long: their storages leave, once the work is done that was
    queued on the current stream before. A use, or a prefetch(), that follows takes it back. No
    effect before operators are watched (firn_watch), when a kernel may use any memory unseen.
    `hinted` and all else as for prefetch()."""
    _hint_at_place("cold", hinted)


def on_host(tensor: torch.Tensor, write: bool = False) -> OnHost:
    """with firn.on_host(tensor, write=True) as pieces: the CPU uses the tensor's bytes in pinned
    host memory, where Firn keeps what is not on the device. It leaves the device if it is there,
    behind the work that was queued on it so far, or is read from the SSD; nothing comes to the
    device, and nothing else crosses the link.

    `tensor`: all of its storage, of 1 MiB and more. pieces: tensors of the CPU, one-dimensional,
    of its type, which follow each other in the order of its storage, some MiB each (4 KiB is a
    divisor of all lengths in bytes but the last). They are Firn's memory: void behind the block.
    `write`: they may be written; kernels that are launched behind the block see it. One use of a
    tensor at a time; work that uses it on the device waits for the end, in this thread it is an
    error.

    MemoryError: firn_host cannot hold it, beside other such uses. RuntimeError: Firn is not the
    allocator, the tensor is small, pinned, or was used by no operator, or could not be read back.
    ValueError: a part of a storage."""
    from firn._host_memory import OnHost
    return OnHost(_plugin(), tensor, write)


class no_spill:
    """While a `with firn.no_spill():` is entered, by any thread, memory on a device stays there,
    whoever owns it. Spilled memory still comes back while there is room; without room it is used in
    host memory, slowly. An allocation that does not fit raises torch.OutOfMemoryError, which says
    so. May be nested."""

    def __init__(self) -> None:
        self._entered: list[ctypes.CDLL | None] = []

    def __enter__(self) -> None:
        library = _plugin()
        if library is not None:
            library.firn_torch_no_spill(1)
        self._entered.append(library)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        library = self._entered.pop()
        if library is not None:
            library.firn_torch_no_spill(0)
