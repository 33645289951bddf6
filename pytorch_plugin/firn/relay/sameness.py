"""Compares the results of two runs of a layer.

Bits need not be equal: kernels that add with atomic operations, and products over fewer rows, sum
in other orders.
"""

from __future__ import annotations

from typing import Sequence

import torch

_SAMPLE = 4096  # elements of a tensor at least, where it has as many


def equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """In shape, type and every value; NaN is NaN."""
    return one.shape == other.shape and one.dtype == other.dtype and \
        bool(((one == other) | ((one != one) & (other != other))).all())


def close(one: torch.Tensor, other: torch.Tensor, loose: bool) -> bool:
    """Up to roundings: products over fewer rows are summed in other blocks. `loose`: operators
    compute with fewer bits than their results have."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return bool((one == other).all())
    exact = {torch.float64: 1e-9, torch.float32: 1e-4}.get(one.dtype, 1e-2)
    one, other = one.double(), other.double()
    both = torch.isfinite(one) & torch.isfinite(other)
    if not bool((both | (one == other) | (one.isnan() & other.isnan())).all()):
        return False
    zero = torch.zeros((), dtype=one.dtype, device=one.device)
    one, other = torch.where(both, one, zero), torch.where(both, other, zero)
    return bool((one - other).norm() <= (1e-2 if loose else exact) * one.norm())


class Sample:
    """Copies of some elements of each of `tensors`, evenly spaced."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._samples = [_some_of(each) for each in tensors]

    def is_close(self, tensors: Sequence[torch.Tensor], loose: bool) -> bool:
        now = [_some_of(each) for each in tensors]
        return len(now) == len(self._samples) and all(
            (not one.is_floating_point() and one.is_cuda) or close(one, other, loose)
            for one, other in zip(self._samples, now))


def _some_of(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[::max(1, flat.numel() // _SAMPLE)].clone()
