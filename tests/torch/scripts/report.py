"""What every script prints: losses and parameters to the last bit, so that runs can be compared."""

import hashlib

import torch


def loss(step, value):
    """One line per step. `value` is a tensor of one element or a float."""
    value = float(value.detach()) if isinstance(value, torch.Tensor) else value
    print(f"loss {step} {value.hex()}", flush=True)


def digest(tensors):
    """The SHA-256 of the bytes of all `tensors`, in order."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def finish(tensors):
    """The final lines: a digest of `tensors`, and the most memory that was allocated."""
    print(f"sha256 {digest(tensors)}")
    print(f"peak {torch.cuda.max_memory_allocated()}", flush=True)
