"""A model's attributes: all that its modules keep beside parameters, buffers and children."""

from __future__ import annotations

from typing import Any

from torch import nn

_TORCHS = frozenset(vars(nn.Module())) | {"forward"}


class Attributes:
    """Of all modules, as of now. Owns references to them."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._before = model, _of(model)

    def changed(self) -> list[str]:
        """The names of those that are other objects now."""
        now = _of(self._model)
        return [name for name in {**self._before, **now} if name not in now
                or name not in self._before or now[name] is not self._before[name]]


def _of(model: nn.Module) -> dict[str, Any]:
    return {(f"{key!r} of {name}" if name else f"{key!r} of the model"): value
            for name, module in model.named_modules()
            for key, value in vars(module).items() if key not in _TORCHS}
