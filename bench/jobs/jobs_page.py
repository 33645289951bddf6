"""The results of bench/jobs as one page without a network: plots, tables, and for every budget at
which something that runs is faster than Firn that it is and why, from the figures alone."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import charts
import published

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import html_pages  # noqa: E402

NAMES = {column: name for column, (name, _, _) in charts.COLUMNS.items()}
ALTERNATIVES = ("recompute", "save-on-cpu", "streaming", "paging", "nothing")
FASTER = 1.005    # than Firn: less is a tie
NEAR = 0.95       # of the bound: nearly all that moving bytes can do


def _waits(bound: dict[str, Any]) -> str:
    return ", ".join(f"{seconds:.3g} s {kind}" for kind, seconds in bound["waits_s"].items()
                     if seconds > 0.001 * bound["steady_s"])


def ours_of(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Firn's best way, and the bound of who goes it."""
    if "steady_s" in row.get("remake", {}) and "steady_s" in row.get("bound_remake", {}):
        return row["remake"], row["bound_remake"]
    return row["lifetime"], row["bound"]


def why(result: dict[str, Any], row: dict[str, Any], other: str) -> str:
    """Why `other` is faster than Firn in this row."""
    (ours, bound), theirs = ours_of(row), row[other]["steady_s"]
    both = row["both"].get("steady_s")
    if "steady_s" not in ours:
        said = f"Firn does not run: {ours['error']}"
    else:
        reached = bound["steady_s"] / ours["steady_s"]
        said = f"Firn reaches {reached:.2f} of the bound"
        if theirs < bound["steady_s"]:
            said += f" of {bound['steady_s']:.3g} s"
            said += (f", which no mover of bytes beats (waits for {_waits(bound)}); {NAMES[other]} "
                     f"moves fewer bytes and computes for {theirs - result['seconds']:.3g} s more"
                     if "waits_s" in bound else
                     f" for moving and making again; {NAMES[other]} is reckoned at best, below it")
        elif reached < NEAR:
            said += f" of {bound['steady_s']:.3g} s: its decisions leave that much"
        else:
            said += ": the difference is within what it leaves"
    if both and other in ("recompute", "streaming"):
        said += f"; Firn under recomputation takes {both:.3g} s, {NAMES[other]} {theirs:.3g} s"
    return said


def losses(results: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int, str, float, str]]:
    """(result, percent, alternative, how much faster, why): where Firn is not ahead."""
    found = []
    for result in results:
        for row in result.get("budgets", []):
            ours = ours_of(row)[0].get("steady_s", float("inf"))
            for other in ALTERNATIVES:
                theirs = row.get(other, {}).get("steady_s")
                if theirs and theirs * FASTER < ours:
                    found.append((result, row["percent"], other, ours / theirs,
                                  why(result, row, other)))
    return found


def render(results: dict[str, Any], folder: pathlib.Path) -> str:
    """`folder` holds the plots."""
    results = {"jobs": [], "teraio": [], "ssdtrain": [], "depth": [], "l2l": [], "rok": [],
               **results}
    return html_pages.render(
        "jobs.html", results=results, names=NAMES, alternatives=ALTERNATIVES, faster=FASTER,
        part=charts.part, reached=charts.reached, bounds=charts.BOUNDS, published=published,
        losses=losses(results["jobs"]),
        images={path.name: html_pages.png_url(path.read_bytes()) for path in folder.glob("*.png")},
        teraio_words="; ".join(dict.fromkeys(f"{row['machine']}: {row['words']}"
                                             for row in results["teraio"])))
