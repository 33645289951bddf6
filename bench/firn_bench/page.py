"""The results as one page without a network: tables, and a plot for each bench with peers."""

from __future__ import annotations

import base64
import html
import io
from typing import Any

from firn_bench.figures import Figure

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
       color: #1c2733; background: #fff }
table { border-collapse: collapse; margin: .6rem 0 1.6rem }
th, td { padding: .18rem .8rem .18rem 0; text-align: right; border-bottom: 1px solid #e3e8ee }
th:first-child, td:first-child { text-align: left }
.worse { color: #a3330f } .better { color: #116b3a } .quiet { color: #66727f }
img { max-width: 100% }
"""


def plot(figures: list[Figure]) -> str:
    """Firn's part of each peer's, on a scale where twice and half are alike; base64 of a PNG."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    rows = [(f"{each.name}: {peer}", each.ratio(peer), each.better)
            for each in figures for peer in each.peers if each.ratio(peer) > 0]
    if not rows:
        return ""
    figure, axes = pyplot.subplots(figsize=(9, 0.24 * len(rows) + 1.1))
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
    figure.tight_layout()
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=120)
    pyplot.close(figure)
    return base64.b64encode(out.getvalue()).decode()


def _table(figures: list[Figure]) -> str:
    peers = list(dict.fromkeys(peer for each in figures for peer in each.peers))
    head = "".join(f"<th>{html.escape(each)}</th><th>Firn's part</th>" for each in peers)
    rows = []
    for each in figures:
        spread = f" <span class=quiet>({each.spread[0]:.4g} to {each.spread[1]:.4g})</span>" \
            if each.spread else ""
        cells = [f"<td>{html.escape(each.name)}</td>",
                 f"<td>{each.firn:.4g} {html.escape(each.unit)}{spread}</td>"]
        for peer in peers:
            if peer not in each.peers:
                cells.append("<td></td><td></td>")
                continue
            good = (each.ratio(peer) <= 1) == (each.better == "lower")
            cells.append(f"<td>{each.peers[peer]:.4g}</td>"
                         f"<td class={'better' if good else 'worse'}>{each.ratio(peer):.3g}</td>")
        rows.append("<tr>" + "".join(cells) + "</tr>")
    return f"<table><tr><th></th><th>Firn</th>{head}</tr>{''.join(rows)}</table>"


def render(results: dict[str, Any], figures: list[Figure]) -> str:
    machine = "".join(f"<tr><td>{html.escape(key)}</td><td>{html.escape(str(value))}</td></tr>"
                      for key, value in results["machine"].items())
    parts = []
    for bench in dict.fromkeys(each.bench for each in figures):
        of = [each for each in figures if each.bench == bench]
        image = plot(of)
        parts.append(f"<h2>{html.escape(bench)} <span class=quiet>"
                     f"{results['seconds'].get(bench, 0):.0f} s</span></h2>" +
                     (f"<img alt='' src='data:image/png;base64,{image}'>" if image else "") +
                     _table(of))
    left = "".join(f"<li>{html.escape(each)}</li>" for each in results["left_out"])
    return (f"<!doctype html><html lang=en><meta charset=utf-8><title>Firn, {results['date']}"
            f"</title><style>{STYLE}</style><h1>Firn's benches, {results['date']}</h1>"
            f"<p><code>{html.escape(results['command'])}</code>. Medians (quartiles); peers ran "
            "in the same run, in turn.</p>"
            f"<table>{machine}</table>{''.join(parts)}" +
            (f"<h2>Left out</h2><ul>{left}</ul>" if left else "") + "</html>\n")
