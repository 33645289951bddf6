"""The results of bench/jobs as one page without a network: plots, tables, and for every budget at
which something that runs is faster than Firn that it is and why, from the figures alone."""

from __future__ import annotations

import base64
import html
import pathlib
from typing import Any

import charts
import published

NAMES = {column: name for column, (name, _, _) in charts.COLUMNS.items()}
ALTERNATIVES = ("recompute", "save-on-cpu", "streaming", "paging", "nothing")
FASTER = 1.005    # than Firn: less is a tie
NEAR = 0.95       # of the bound: nearly all that moving bytes can do

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 84rem; padding: 0 1rem;
       color: #1c2733; background: #fff }
table { border-collapse: collapse; margin: .6rem 0 1.6rem }
th, td { padding: .15rem .7rem .15rem 0; text-align: right; border-bottom: 1px solid #e3e8ee }
th:first-child, td:first-child { text-align: left }
.lost { color: #a3330f } .quiet { color: #66727f } img { max-width: 100% }
"""


def _waits(bound: dict[str, Any]) -> str:
    return ", ".join(f"{seconds:.3g} s {kind}" for kind, seconds in bound["waits_s"].items()
                     if seconds > 0.001 * bound["steady_s"])


def why(result: dict[str, Any], row: dict[str, Any], other: str) -> str:
    """Why `other` is faster than Firn in this row."""
    ours, theirs, bound = row["lifetime"], row[other]["steady_s"], row["bound"]
    both = row["both"].get("steady_s")
    if "steady_s" not in ours:
        said = f"Firn does not run: {ours['error']}"
    else:
        reached = bound["steady_s"] / ours["steady_s"]
        said = f"Firn reaches {reached:.2f} of the bound"
        if theirs < bound["steady_s"]:
            said += (f" of {bound['steady_s']:.3g} s, which no mover of bytes beats "
                     f"(waits for {_waits(bound)}); {NAMES[other]} moves fewer bytes and computes "
                     f"for {theirs - result['seconds']:.3g} s more")
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
            ours = row["lifetime"].get("steady_s", float("inf"))
            for other in ALTERNATIVES:
                theirs = row[other].get("steady_s")
                if theirs and theirs * FASTER < ours:
                    found.append((result, row["percent"], other, ours / theirs,
                                  why(result, row, other)))
    return found


def _cell(value: float | None, lost: bool = False) -> str:
    shown = "-" if value is None else f"{value:.3f}"
    return f"<td{' class=lost' if lost else ''}>{shown}</td>"


def _curve_table(result: dict[str, Any]) -> str:
    title = f"<h3>{html.escape(result['job'])} <span class=quiet>"
    if "error" in result:
        return f"{title}{html.escape(result['error'])}</span></h3>"
    title += (f"{result['kernels']} kernels, {result['seconds']:.3f} s ({result['times']}), "
              f"{result['peak_bytes'] / 2**30:.1f} GiB, {result['persistent_bytes'] / 2**30:.1f} "
              f"persistent; {result['ssds']} SSDs</span></h3>")
    head = "".join(f"<th>{html.escape(each)}</th>" for each in NAMES.values())
    rows = []
    for row in result["budgets"]:
        ours = charts.part(result, row, "lifetime") or 0.0
        bound = charts.part(result, row, "bound")
        cells = [_cell(charts.part(result, row, each), each in ALTERNATIVES and
                       (charts.part(result, row, each) or 0) > ours * FASTER) for each in NAMES]
        rows.append(f"<tr><td>{row['percent']} %</td>{''.join(cells)}{_cell(bound)}"
                    f"{_cell(ours / bound if bound and ours else None)}</tr>")
    return (f"{title}<table><tr><th>budget</th>{head}<th>bound</th><th>Firn's part of it</th></tr>"
            f"{''.join(rows)}</table>")


def _teraio(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        def part(name):
            steady = row.get(name, {}).get("steady_s")
            return row["seconds"] / steady if steady else None
        if "error" in row:
            lines.append(f"<tr><td>{row['job']}</td><td>{html.escape(row['error'])}</td></tr>")
            continue
        lines.append(f"<tr><td>{row['job']}, {row['batch']} x {row['length']}, "
                     f"{row['machine']}</td>"
                     f"<td>{row['peak_bytes'] / 2**30:.0f}</td><td>{row['seconds']:.2f}</td>" +
                     "".join(_cell(part(each)) for each in ("lifetime", "greedy", "bound")) +
                     "</tr>")
    words = "; ".join(dict.fromkeys(f"{row['machine']}: {row['words']}" for row in rows))
    return (f"<p>{html.escape(words)}; budget "
            f"{rows[0]['budget_bytes'] / 2**30:.0f} GiB. TERAIO publishes a mean of "
            f"{published.TERAIO_PART}.</p><table><tr><th>job, batch x tokens</th><th>needs GiB</th>"
            "<th>ideal s</th><th>Firn</th><th>greedy plan</th><th>bound</th></tr>"
            f"{''.join(lines)}</table>")


def _ssdtrain(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        if "error" in row:
            lines.append(f"<tr><td>{row['job']}</td><td>{html.escape(row['error'])}</td></tr>")
            continue
        lines.append(
            f"<tr><td>{row['job']}</td><td>{row['peak_bytes'] / 2**30:.1f}</td>"
            f"<td>{row['activations_bytes'] / 2**30:.1f}</td>" + "".join(
                f"<td>{row[each]['budget_bytes'] / 2**30:.1f}</td>"
                f"<td>{100 * row[each]['down']:.0f} %</td>"
                f"<td>{100 * row[each + '_bound']['down']:.0f} %</td>"
                for each in ("activations", "all")) + "</tr>")
    low, high = published.SSDTRAIN_PARTS
    return (f"<p>{html.escape(rows[0].get('words', ''))}. SSDTrain publishes {100 * low:.0f} to "
            f"{100 * high:.0f} % less at an unchanged step time; here a step takes at most "
            f"{100 * (published.LONGER - 1):.0f} % longer.</p><table><tr><th>job</th>"
            "<th>needs GiB</th><th>activations GiB</th><th>activations moved: least GiB</th>"
            "<th>down</th><th>any mover</th><th>all moved: least GiB</th>"
            "<th>down, of activations</th><th>any mover</th></tr>"
            f"{''.join(lines)}</table>")


def _depth(result: dict[str, Any]) -> str:
    lines = []
    for row in result["rows"]:
        found = row["lifetime"]
        if "seconds" not in found:
            lines.append(f"<tr><td>{row['layers']}</td><td>{html.escape(found['error'])}</td></tr>")
            continue
        cells = [found["seconds"] / row[each]["steady_s"] if row.get(each, {}).get("steady_s")
                 else None for each in ("lifetime", "both", "bound")]
        lines.append(f"<tr><td>{row['layers']}</td><td>{found['peak_bytes'] / 2**30:.0f}</td>"
                     f"<td>{found['persistent_bytes'] / 2**30:.0f}</td>"
                     f"<td>{found['seconds']:.3f}</td>{''.join(map(_cell, cells))}</tr>")
    return (f"<p>{html.escape(result['job'])} in {result['budget_bytes'] / 2**30:.0f} GiB; "
            f"{html.escape(result['words'])}.</p><table><tr><th>layers</th><th>needs GiB</th>"
            "<th>weights and states</th><th>ideal s</th><th>Firn</th>"
            "<th>Firn under recomputation</th><th>bound</th></tr>"
            f"{''.join(lines)}</table>")


def _image(path: pathlib.Path) -> str:
    if not path.exists():
        return ""
    data = base64.b64encode(path.read_bytes()).decode()
    return f"<img alt='' src='data:image/png;base64,{data}'>"


def render(results: dict[str, Any], folder: pathlib.Path) -> str:
    """`folder` holds the plots."""
    parts = []
    curves = results.get("jobs", [])
    lost = losses(curves)
    if curves:
        parts.append("<h2>Where something that runs is faster than Firn</h2>" + (
            "<table><tr><th>job</th><th>machine</th><th>budget</th><th>faster</th><th>by</th>"
            "<th style='text-align: left'>why</th></tr>" + "".join(
                f"<tr><td>{html.escape(result['job'])}</td><td>{result['machine']}, "
                f"{result['ssds']} SSDs</td><td>{percent} %</td><td>{NAMES[other]}</td>"
                f"<td>{ratio:.2f} x</td><td style='text-align: left'>{html.escape(said)}</td></tr>"
                for result, percent, other, ratio, said in lost) + "</table>"
            if lost else "<p>Nowhere.</p>"))
    for machine in dict.fromkeys(each["machine"] for each in curves):
        of = [each for each in curves if each["machine"] == machine]
        parts.append(f"<h2>{html.escape(of[0]['words'])}</h2>"
                     f"{_image(folder / f'{machine}.png')}"
                     f"{_image(folder / f'{machine}-ssds.png')}" +
                     "".join(_curve_table(each) for each in of))
    if results.get("teraio"):
        parts.append("<h2>TERAIO's cases</h2>" + _teraio(results["teraio"]))
    if results.get("ssdtrain"):
        parts.append("<h2>SSDTrain's cases</h2>" + _ssdtrain(results["ssdtrain"]))
    if results.get("depth"):
        parts.append(f"<h2>Deeper and deeper</h2>{_image(folder / 'depth.png')}" +
                     "".join(_depth(each) for each in results["depth"]))
    runs = "".join(f"<tr><td>{html.escape(each['date'])}</td><td><code>"
                   f"{html.escape(each['command'])}</code></td><td>{html.escape(each['versions'])}"
                   "</td></tr>" for each in results["runs"])
    return (f"<!doctype html><html lang=en><meta charset=utf-8><title>Whole jobs</title>"
            f"<style>{STYLE}</style><h1>Whole training jobs, in simulation</h1>"
            "<p>Speed as a part of unlimited: the same step with everything in memory. Hardware is "
            "modelled; kernel times are from a roofline unless a job says recorded. The bound "
            "is a lower bound of the step's time for whatever moves bytes and computes none "
            "twice (bench/jobs/bound.py); what is above it in the plots, such a mover cannot "
            f"reach.</p><table>{runs}</table>{''.join(parts)}</html>\n")
