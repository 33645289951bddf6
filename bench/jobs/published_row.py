"""A published figure, and Firn's beside it."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Row:
    system: str
    what: str
    theirs: str
    ours: str            # empty: not measured
    machine: str
    command: str
    why: str = ""        # ours is less, or not measured


def not_measured(system: str, what: str, theirs: str, why: str) -> Row:
    return Row(system, what, theirs, "", "", "", why)


def _asked(command: str, option: str) -> list[str]:
    words = command.split()
    return words[words.index(option) + 1].split(",") if option in words[:-1] else []


def command_of(found: dict[str, Any], system: str, job: str = "") -> str:
    """The last one that ran `--published system` (for that job), and when."""
    for run in reversed(found["runs"]):
        jobs = _asked(run["command"], "--jobs")
        if system in _asked(run["command"], "--published") and \
                (not job or not jobs or job in jobs):
            return f"bench/jobs/{run['command']} ({run['date']})"
    return ""
