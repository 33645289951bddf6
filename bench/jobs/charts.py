"""Plots of bench/jobs: speed against budget, for each job; against depth; against SSDs; against the
peak of activations, recomputed, moved or kept."""

from __future__ import annotations

import math
import pathlib
from typing import Any

# Shown in this order: name, and how it is drawn.
COLUMNS = {
    "remake": ("Firn, making again", "h", "#0b3d63"),
    "lifetime": ("Firn, moving alone", "o", "#1b6ca8"),
    "age": ("Firn, by age", "s", "#7fb2d9"),
    "both": ("Firn under recomputation", "P", "#2a9d6f"),
    "recompute": ("recomputation", "^", "#c8553d"),
    "save-on-cpu": ("save_on_cpu", "v", "#b08900"),
    "chosen": ("recomputation, chosen (at best)", "<", "#e39b86"),
    "titan": ("kept, moved or recomputed (at best)", ">", "#c2a14d"),
    "streaming": ("layers streamed (at best)", "D", "#8e6bbf"),
    "paging": ("page faults", "*", "#8a8a8a"),
    "nothing": ("PyTorch as it is", "X", "#222222"),
}
# Of whoever moves; of whoever also makes again.
BOUNDS = {"bound": ("bound of any mover", "#777777", ":"),
          "bound_remake": ("bound, made again or moved", "#333333", "-.")}


def part(result: dict[str, Any], row: dict[str, Any], column: str) -> float | None:
    """Of the speed with everything in memory."""
    steady = row.get(column, {}).get("steady_s")
    return result["seconds"] / steady if steady else None


def reached(result: dict[str, Any], row: dict[str, Any]) -> float | None:
    """Firn's part of its bound: making again, where that was run, else moving alone."""
    ways = ("remake", "bound_remake") if "steady_s" in row.get("remake", {}) else \
        ("lifetime", "bound")
    ours, bound = (part(result, row, each) for each in ways)
    return ours / bound if ours and bound else None


def _pyplot():
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    return pyplot


def _save(pyplot, figure, path: pathlib.Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def _curve(axes, result: dict[str, Any]) -> None:
    for column, (name, color, line) in BOUNDS.items():
        bound = [(row["percent"], part(result, row, column)) for row in result["budgets"]]
        bound = [each for each in bound if each[1] is not None]
        if bound:
            axes.fill_between(*zip(*bound), 1.05, color="#eeeeee", linewidth=0)
            axes.plot(*zip(*bound), color=color, linestyle=line, label=name)
    for column, (name, mark, color) in COLUMNS.items():
        points = [(row["percent"], part(result, row, column)) for row in result["budgets"]]
        points = [each for each in points if each[1] is not None]
        if points:
            axes.plot(*zip(*points), marker=mark, markersize=4, label=name, color=color,
                      linewidth=2 if column in ("lifetime", "remake") else 1)
    axes.set_ylim(0, 1.05)
    axes.invert_xaxis()
    axes.grid(alpha=0.3)
    axes.set_title(f"{result['job']}, {result['peak_bytes'] / 2**30:.0f} GiB", fontsize=9)


def budgets(results: list[dict[str, Any]], path: pathlib.Path) -> None:
    """All jobs of one machine."""
    pyplot = _pyplot()
    across = min(3, len(results))
    down = math.ceil(len(results) / across)
    figure, grid = pyplot.subplots(down, across, figsize=(4.2 * across, 2.9 * down + 0.5),
                                   squeeze=False)
    for axes in grid.flat[len(results):]:
        axes.set_visible(False)
    for axes, result in zip(grid.flat, results):
        _curve(axes, result)
    for axes in grid[:, 0]:
        axes.set_ylabel("speed, part of unlimited", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("budget, % of what it needs", fontsize=8)
    named = dict(zip(*reversed(grid.flat[0].get_legend_handles_labels())))
    for axes in grid.flat[1:]:
        named = dict(zip(*reversed(axes.get_legend_handles_labels()))) | named
    figure.legend(named.values(), named.keys(), loc="upper center", ncols=5 if across > 1 else 2,
                  fontsize=7, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.45 / (2.9 * down + 0.5)))
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def ssds(results: list[dict[str, Any]], path: pathlib.Path) -> None:
    """One machine with more and more SSDs."""
    pyplot = _pyplot()
    jobs = list(dict.fromkeys(each["job"] for each in results))
    figure, grid = pyplot.subplots(1, len(jobs), figsize=(4.2 * len(jobs), 3.4), squeeze=False)
    for axes, job in zip(grid[0], jobs):
        for result in sorted((each for each in results if each["job"] == job),
                             key=lambda each: each["ssds"]):
            points = [(row["percent"], part(result, row, "lifetime")) for row in result["budgets"]]
            points = [each for each in points if each[1] is not None]
            if points:
                axes.plot(*zip(*points), marker="o", markersize=4, label=f"{result['ssds']} SSDs")
        axes.set_ylim(0, 1.05)
        axes.invert_xaxis()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
        axes.set_title(f"{job} on {results[0]['machine']}", fontsize=9)
        axes.set_xlabel("budget, % of what it needs", fontsize=8)
    grid[0][0].set_ylabel("Firn's speed, part of unlimited", fontsize=8)
    _save(pyplot, figure, path)


def depth(results: list[dict[str, Any]], path: pathlib.Path) -> None:
    pyplot = _pyplot()
    figure, grid = pyplot.subplots(1, len(results), figsize=(5.2 * len(results), 3.6),
                                   squeeze=False)
    for axes, result in zip(grid[0], results):
        rows = result["rows"]
        seconds = {row["layers"]: row["lifetime"].get("seconds") for row in rows}
        for column in ("bound", "bound_remake", "lifetime", "remake", "both"):
            points = [(row["layers"], seconds[row["layers"]] / row[column]["steady_s"])
                      for row in rows if row.get(column, {}).get("steady_s")]
            if points:
                if column in BOUNDS:
                    name, color, line = BOUNDS[column]
                    axes.plot(*zip(*points), color=color, label=name, linestyle=line)
                else:
                    name, mark, color = COLUMNS[column]
                    axes.plot(*zip(*points), marker=mark, color=color, label=name)
        for row in rows:
            if "peak_bytes" in row["lifetime"]:
                axes.annotate(f"{row['lifetime']['peak_bytes'] / 2**30:.0f} GiB",
                              (row["layers"], 0.04), fontsize=7, ha="center")
        axes.set_xscale("log", base=2)
        axes.set_xticks([row["layers"] for row in rows], [str(row["layers"]) for row in rows])
        axes.set_ylim(0, 1.05)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
        axes.set_xlabel("layers (memory that they need, below)", fontsize=8)
        axes.set_title(f"{result['job']}, {result['budget_bytes'] / 2**30:.0f} GiB of "
                       f"{result['machine']}", fontsize=9)
    grid[0][0].set_ylabel("speed, part of unlimited", fontsize=8)
    _save(pyplot, figure, path)


ROK = {"recompute": ("recomputed, every layer", "^", "#c8553d"),
       "offload": ("moved by Firn", "o", "#1b6ca8"),
       "remake": ("moved or made again by Firn", "h", "#0b3d63"),
       "keep": ("kept", "X", "#222222")}


def rok(results: list[dict[str, Any]], path: pathlib.Path) -> None:
    """SSDTrain's curve: a line for each way, from batch to batch."""
    pyplot = _pyplot()
    across = min(3, len(results))
    down = math.ceil(len(results) / across)
    figure, grid = pyplot.subplots(down, across, figsize=(4.2 * across, 3.2 * down), squeeze=False)
    for axes in grid.flat[len(results):]:
        axes.set_visible(False)
    for axes, result in zip(grid.flat, results):
        for way, (name, mark, color) in ROK.items():
            points = [each for each in result["points"] if each["way"] == way]
            axes.plot([each["bytes"] / 2**30 for each in points],
                      [each["sequences_s"] for each in points], marker=mark, markersize=5,
                      color=color, label=name, linewidth=1)
            for each in points:
                axes.annotate(str(each["batch"]), (each["bytes"] / 2**30, each["sequences_s"]),
                              xytext=(3, 3), textcoords="offset points", fontsize=6)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.set_title(f"{result['job']} (numbers: batch)", fontsize=9)
    grid.flat[0].legend(fontsize=6)
    for axes in grid[:, 0]:
        axes.set_ylabel("sequences a second", fontsize=8)
    for axes in grid[-1]:
        axes.set_xlabel("activations' peak, GiB", fontsize=8)
    _save(pyplot, figure, path)
