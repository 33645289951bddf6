"""Bytes of real text that is on every machine with Python: the sources of its own library."""

import pathlib
import sysconfig

import torch


def library_text(bytes_max):
    text = bytearray()
    for path in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= bytes_max:
            break
    return torch.frombuffer(text[:bytes_max], dtype=torch.uint8)


def batches(text, steps, batch, length, seed):
    """Pairs of (input, target) on the CPU, each (batch, length), int64."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        at = torch.randint(len(text) - length - 1, (batch,), generator=generator)
        rows = torch.stack([text[i:i + length + 1] for i in at.tolist()]).long()
        yield rows[:, :-1], rows[:, 1:]
