"""Firn: GPU memory that ages. Cold blocks leave the GPU for host memory and NVMe, and are back
before the next kernel that uses them.

Nothing has to be imported: PYTORCH_CUDA_ALLOC_CONF=backend:firn,firn_budget:20GiB,... is enough.
This module tells what Firn did, and takes hints. It imports torch only where a tensor is given to
it.
"""

__all__ = ["cold", "enabled", "memory_summary", "pin", "prefetch", "stats", "unpin"]


def _plugin():
    import sys
    autoload = sys.modules.get("firn._autoload")
    return autoload.plugin() if autoload else None


def enabled():
    """Whether Firn is this process's CUDA allocator."""
    return _plugin() is not None


def stats():
    """What `firn run --stats` writes, now: {"pid", "devices": [...], "store": {...}}. {} before
    CUDA has started, and where Firn is not the allocator."""
    library = _plugin()
    if library is None:
        return {}
    import json
    from firn._libraries import read_text
    text = read_text(library.firn_torch_stats)
    return json.loads(text) if text else {}


def memory_summary():
    """stats() as a few lines of text."""
    def size(count):
        for unit in ("B", "KiB", "MiB", "GiB"):
            if count < 1024:
                break
            count /= 1024
        else:
            unit = "TiB"
        return ("%d %s" if unit == "B" else "%.2f %s") % (count, unit)

    document = stats()
    lines = []
    for device in document.get("devices", []):
        lines.append("device %d: %s of %s on the device, %s in host memory, %s on NVMe" % (
            device["device"], size(device["device_bytes"]), size(device["budget_bytes"]),
            size(device["hosted_bytes"]), size(device["nvme_bytes"])))
        lines.append("  spilled %s, faulted %s, prefetched %s, waited %.3f s" % (
            size(device["spilled_bytes"]), size(device["faulted_bytes"]),
            size(device["prefetched_bytes"]), device["stall_s"]))
        lines += ["  pinned %s: %s" % (size(pin["bytes"]), pin["reason"])
                  for pin in device["pinned"]]
        lines += ["  trouble: " + words for words in device["trouble"]]
    return "\n".join(lines) if lines else "Firn is not in use"


def _hint(name, tensor, *more):
    library = _plugin()
    if library is None or not tensor.is_cuda:
        return
    import ctypes
    error = ctypes.create_string_buffer(1024)
    address = tensor.untyped_storage().data_ptr()
    if address and getattr(library, "firn_torch_" + name)(address, *more, error, len(error)):
        raise RuntimeError("firn: " + error.value.decode(errors="replace"))


def pin(tensor):
    """Keeps the tensor's storage on the device until unpin(). Counted. For memory that something
    uses without PyTorch's operators."""
    _hint("pin", tensor)


def unpin(tensor):
    _hint("unpin", tensor)


def prefetch(tensor):
    """Starts bringing the tensor's storage back for the current stream; does not wait."""
    if tensor.is_cuda:
        import torch
        stream = torch.cuda.current_stream(tensor.device).cuda_stream
        _hint("prefetch", tensor, tensor.untyped_storage().nbytes(), stream)


def cold(tensor):
    """The tensor will not be used soon: its storage is the first to leave."""
    _hint("cold", tensor, tensor.untyped_storage().nbytes())
