"""Sums of gradients in 32 bits, of parameters of 16 bits.

The order of execution makes it cheap: a layer's sums live only while that layer runs backward.
"""

from __future__ import annotations

from typing import Sequence

import torch
from torch import nn

_SMALL = (torch.bfloat16, torch.float16)


class Sums:
    """Owns what fold() took from the parameters' gradients, until finish()."""

    def __init__(self) -> None:
        self._sums: dict[nn.Parameter, torch.Tensor] = {}

    def fold(self, parameters: Sequence[nn.Parameter]) -> None:
        """Adds what has come since the last time; their gradients are None then."""
        for each in parameters:
            gradient = each.grad
            if gradient is None or each.dtype not in _SMALL or \
                    gradient.layout is not torch.strided:
                continue
            each.grad = None
            if each in self._sums:
                self._sums[each].add_(gradient.detach())
            else:
                self._sums[each] = gradient.detach().to(torch.float32)

    def finish(self, parameters: Sequence[nn.Parameter] | None = None) -> None:
        """The gradients of `parameters`, or of all, are the sums, rounded once."""
        parameters = [each for each in (self._sums if parameters is None else parameters)
                      if each in self._sums]
        self.fold(parameters)
        for each in parameters:
            each.grad = self._sums.pop(each).to(each.dtype)
