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


def command_of(found: dict[str, Any], words: str) -> str:
    """The last one that was run with them, and when."""
    option, _, value = words.strip().partition(" ")
    for run in reversed(found["runs"]):
        given = run["command"].split()
        at = given.index(option) + 1 if option in given else len(given)
        if at < len(given) and value in given[at].split(","):
            return f"bench/jobs/{run['command']} ({run['date']})"
    return ""
