"""Draws the findings of `firn simulate` or `firn layout`, JSON on standard input, into a PNG file.

Run by the command, as a file: simulate_plot.py FILE.png, or --check (is matplotlib there?).
"""

from __future__ import annotations

import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GIB = 1 << 30
TIERS = [("on the device", "#2f6f9f"), ("in host memory", "#8fb8d8"), ("on NVMe", "#d9dde3")]


def pyplot() -> Any:
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot as module
    return module


def draw_timeline(data: dict[str, Any], path: str) -> None:
    plt = pyplot()
    figure, (memory, flight) = plt.subplots(
        2, sharex=True, figsize=(11, 6), gridspec_kw={"height_ratios": [3, 1]})
    samples = data["samples"]
    seconds = [sample[0] for sample in samples]
    memory.stackplot(seconds, *([sample[tier + 1] / GIB for sample in samples]
                                for tier in range(len(TIERS))),
                     labels=[words for words, _ in TIERS], step="post",
                     colors=[color for _, color in TIERS])
    memory.axhline(data["budget_bytes"] / GIB, color="black", linewidth=1, label="the GPU's memory")
    memory.set_ylabel("GiB (with copies in two tiers: counted twice)")
    memory.set_ylim(bottom=0)
    memory.legend(loc="lower right", framealpha=0.9)
    flight.step([point[0] for point in data["in_flight"]],
                [point[1] / GIB for point in data["in_flight"]], where="post", linewidth=0.6,
                color="#2f6f9f", label="bytes in flight")
    widest = seconds[-1] / 2000  # a stall narrower than a pixel is drawn as part of its neighbours
    bars: list[list[float]] = []
    for begin, end in data["stalls"]:
        if bars and begin - bars[-1][1] < widest:
            bars[-1][1] = end
        else:
            bars.append([begin, end])
    for axes in (memory, flight):
        axes.broken_barh([(begin, end - begin) for begin, end in bars if end - begin >= widest],
                         (0, 0.06), transform=axes.get_xaxis_transform(), color="#c0392b")
        for end in data["iteration_ends"]:
            axes.axvline(end, color="grey", linewidth=0.5, linestyle=":")
    flight.plot([], [], color="#c0392b", linewidth=4, label="stalled")
    flight.set_ylabel("GiB")
    flight.set_xlabel("seconds (dotted: ends of iterations)")
    flight.set_xlim(min(0, seconds[0]), seconds[-1])
    flight.set_ylim(bottom=0)
    flight.legend(loc="upper right", framealpha=0.9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def draw_sweep(data: dict[str, Any], path: str) -> None:
    plt = pyplot()
    points = [point for point in data["points"] if "error" not in point]
    budgets = [point["budget_bytes"] / GIB for point in points]
    figure, slow = plt.subplots(figsize=(9, 4.5))
    slow.plot(budgets, [point["slow_down"] for point in points], marker="o", color="#2f6f9f",
              label="slow-down")
    slow.axhline(1, color="black", linewidth=0.8)
    slow.set_xlabel("GPU memory, GiB")
    slow.set_ylabel("time of an iteration / ideal")
    slow.set_ylim(bottom=0.9)
    written = slow.twinx()
    written.plot(budgets, [point["bytes_written"] / GIB for point in points], marker="s",
                 linestyle="--", color="#c0392b", label="written per iteration")
    written.set_ylabel("GiB written to SSD per iteration")
    written.set_ylim(bottom=0)
    lines = slow.get_lines()[:1] + written.get_lines()
    slow.legend(lines, [line.get_label() for line in lines], loc="upper right", framealpha=0.9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def draw_layout(data: dict[str, Any], path: str) -> None:
    plt = pyplot()
    from matplotlib.collections import PolyCollection
    figure, axes = plt.subplots(figsize=(11, 6))
    corners = [[(lower, offset), (upper, offset), (upper, offset + size), (lower, offset + size)]
               for lower, upper, offset, size in data["buffers"]]
    shades = plt.get_cmap("Blues")
    colors = [shades(0.3 + 0.5 * (index * 0.618 % 1)) for index in range(len(corners))]
    axes.add_collection(PolyCollection(
        corners, facecolors=colors, edgecolors="white",
        linewidths=0.3 if len(corners) < 5000 else 0))
    axes.axhline(data["load"], color="black", linewidth=0.8, label="load: no layout is lower")
    axes.axhline(data["height"], color="#c0392b", linewidth=0.8, linestyle="--", label="height")
    axes.set_xlim(data["begin"], data["end"])
    axes.set_ylim(0, data["height"] * 1.15)
    axes.set_xlabel("time")
    axes.set_ylabel("address")
    if data["left_out"]:
        axes.set_title(f"the largest {len(corners)} buffers, {data['left_out']} smaller left out")
    axes.legend(loc="upper right", framealpha=0.9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def draw_lifetimes(data: dict[str, Any], path: str) -> None:
    plt = pyplot()
    rows = data["over_time"]
    lengths = [each["up_to_s"] for each in data["by_length"]]
    names = [f"idle, up to {each:g} s" for each in lengths if each is not None]
    names.append(f"idle, longer than {lengths[-2]:g} s")
    shades = plt.get_cmap("Blues")
    figure, axes = plt.subplots(figsize=(11, 5))
    axes.stackplot([row[0] for row in rows],
                   *([row[1 + part] / GIB for row in rows] for part in range(1 + len(names))),
                   labels=["active", *names], step="post",
                   colors=["#c0392b", *(shades(0.2 + 0.7 * part / len(names))
                                        for part in range(len(names)))])
    axes.set_title(f"active: {100 * data['active_share_mean']:.2g} % of the footprint on average; "
                   f"{100 * data['tensors_inactive_over_10ms_share']:.3g} % of the tensors are "
                   "idle for over 10 ms at a time", fontsize=9)
    axes.set_xlabel("seconds of an iteration")
    axes.set_ylabel("GiB")
    axes.set_xlim(0, data["seconds"])
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", framealpha=0.9, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


DRAWN = {"sweep": draw_sweep, "timeline": draw_timeline, "layout": draw_layout,
         "lifetimes": draw_lifetimes}


def main(words: list[str]) -> int | str:
    if len(words) != 1:
        return "usage: simulate_plot.py FILE.png | --check"
    try:
        if words[0] == "--check":
            pyplot()
            return 0
        data = json.load(sys.stdin)
        DRAWN[data["kind"]](data, words[0])
    except ImportError as error:
        return f"{error.name or error} is missing"
    except OSError as error:
        return str(error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
