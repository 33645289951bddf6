"""The results as one page without a network: tables, curves, and for each bench with peers their
parts."""

from __future__ import annotations

import io
from typing import Any

import html_pages
from firn_bench.figures import Figure

# Sequences of colours and marks: Firn's first.
COLOURS = ("#2f6fb0", "#c0603a", "#3c8d5a", "#8a5fb0", "#b09a2f", "#66727f")
MARKS = "os^vDx"


def _pyplot():
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    return pyplot


def _as_png(figure) -> bytes:
    out = io.BytesIO()
    figure.tight_layout()
    figure.savefig(out, format="png", dpi=120)
    _pyplot().close(figure)
    return out.getvalue()


def plot_parts(figures: list[Figure]) -> bytes | None:
    """Firn's part of each peer's, on a scale where twice and half are alike; none without peers."""
    rows = [(f"{each.name}: {peer}", each.ratio(peer), each.better)
            for each in figures for peer in each.peers if each.ratio(peer) > 0]
    if not rows:
        return None
    figure, axes = _pyplot().subplots(figsize=(9, 0.24 * len(rows) + 1.1))
    good = [(ratio <= 1) == (better == "lower") for _, ratio, better in rows]
    axes.barh(range(len(rows)), [ratio - 1 for _, ratio, _ in rows], left=1,
              color=["#3c8d5a" if each else "#c0603a" for each in good], height=0.7)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=7)
    axes.set_xscale("log", base=2)
    axes.axvline(1, color="#444", linewidth=0.8)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("Firn's figure as a part of the peer's; green where Firn's is the better one")
    axes.grid(axis="x", alpha=0.3)
    return _as_png(figure)


def _short(value: float, _=None) -> str:
    """4096 as 4k, 1048576 as 1M; 1000000 as 1e+06."""
    for unit, name in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "k")):
        if value >= unit and value % unit == 0:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def plot_curves(figures: list[Figure]) -> bytes | None:
    """A small plot for each curve, with Firn's quartiles; none where nothing lies on one."""
    curves: dict[str, list[Figure]] = {}
    for each in figures:
        if each.curve:
            curves.setdefault(each.curve, []).append(each)
    curves = {name: sorted(points, key=lambda point: point.x) for name, points in curves.items()
              if len({point.x for point in points}) > 1}
    if not curves:
        return None
    across = min(2, len(curves))
    down = -(-len(curves) // across)
    figure, grid = _pyplot().subplots(down, across, figsize=(5.2 * across, 3.1 * down),
                                      squeeze=False)
    for axes in grid.flat[len(curves):]:
        axes.axis("off")
    for axes, (name, points) in zip(grid.flat, curves.items()):
        lines = {line: [(p.x, p.firn, p.spread) for p in points if p.line == line]
                 for line in dict.fromkeys(p.line for p in points)}
        for peer in dict.fromkeys(peer for p in points for peer in p.peers):
            lines[peer] = [(p.x, p.peers[peer], None) for p in points if peer in p.peers]
        for number, (line, values) in enumerate(lines.items()):
            colour = COLOURS[number % len(COLOURS)]
            axes.plot([x for x, _, _ in values], [y for _, y, _ in values], label=line,
                      color=colour, marker=MARKS[number % len(MARKS)], markersize=4, linewidth=1.3)
            spreads = [(x, spread) for x, _, spread in values if spread]
            axes.fill_between([x for x, _ in spreads], [low for _, (low, _) in spreads],
                              [high for _, (_, high) in spreads], color=colour, alpha=.2,
                              linewidth=0)
        axes.set_xscale("log", base=2 if points[-1].x % 2 == 0 and points[0].x % 10 else 10)
        axes.set_yscale("log" if points[0].better == "lower" else "linear")
        if points[0].better == "higher":
            axes.set_ylim(bottom=0)
        unit = "" if name.endswith(points[0].unit) else f": {points[0].unit}"
        axes.set_title(name + unit, fontsize=9)
        axes.set_xticks(sorted({p.x for p in points}))
        axes.xaxis.set_major_formatter(_short)
        axes.minorticks_off()
        axes.tick_params(labelsize=7)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=6)
    return _as_png(figure)


def plots(figures: list[Figure]) -> dict[str, bytes]:
    """PNGs by name: BENCH-curves and BENCH-parts."""
    found = {}
    for bench in dict.fromkeys(each.bench for each in figures):
        of = [each for each in figures if each.bench == bench]
        for name, draw in (("curves", plot_curves), ("parts", plot_parts)):
            if image := draw(of):
                found[f"{bench}-{name}"] = image
    return found


def render(results: dict[str, Any], figures: list[Figure], images: dict[str, bytes]) -> str:
    benches = []
    for bench in dict.fromkeys(each.bench for each in figures):
        of = [each for each in figures if each.bench == bench]
        drawn = [images.get(f"{bench}-{name}") for name in ("curves", "parts")]
        benches.append({"name": bench, "seconds": results["seconds"].get(bench, 0), "figures": of,
                        "images": [html_pages.png_url(each) for each in drawn if each],
                        "peers": list(dict.fromkeys(peer for each in of for peer in each.peers))})
    return html_pages.render("suite.html", results=results, benches=benches)
