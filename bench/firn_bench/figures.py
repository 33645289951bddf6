"""A figure of the suite, and results files: written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import statistics
from typing import Any, Iterable


@dataclasses.dataclass
class Figure:
    bench: str
    name: str
    unit: str
    firn: float
    peers: dict[str, float] = dataclasses.field(default_factory=dict)
    better: str = "lower"          # or "higher"
    spread: tuple[float, float] | None = None   # quartiles of Firn's
    curve: str = ""                # what the page draws it with
    x: float = 0                   # where on the curve
    line: str = "Firn"             # of several on one curve

    def ratio(self, peer: str) -> float:
        """Firn's part of the peer's."""
        return self.firn / self.peers[peer] if self.peers[peer] else float("nan")


def median_of(bench: str, name: str, unit: str, values: Iterable[float], **more: Any) -> Figure:
    values = sorted(values)
    quartiles = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return Figure(bench, name, unit, statistics.median(values),
                  spread=(quartiles[0], quartiles[2]), **more)


def write_whole(path: pathlib.Path, content: str | bytes) -> None:
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def as_json(results: dict[str, Any], figures: list[Figure]) -> str:
    return json.dumps({**results, "figures": [dataclasses.asdict(each) for each in figures]},
                      indent=1) + "\n"


def read(path: pathlib.Path) -> tuple[dict[str, Any], list[Figure]]:
    """ValueError, with words, where the file is not one of the suite's."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        figures = [Figure(**{**each, "spread": tuple(each["spread"]) if each["spread"] else None})
                   for each in found.pop("figures")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: no results of bench/run.sh ({error})") from None
    return found, figures
