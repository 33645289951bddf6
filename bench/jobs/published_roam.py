"""ROAM's figures, and Firn's from the table that bench/roam/figures.py printed.

ROAM's headlines are put beside its own rows, and the same arithmetic is done with Firn's. Which
average a headline is of is looked for among AVERAGES: one gives it where rows within their rounding
(they are whole MiB) do. tests/bench/test_jobs_roam.py holds what comes of that: the mean over the
14 rows gives PyTorch's and the heuristics'. It gives 32.0 % for MODeL's 27.2; the median, 27.8, is
the only one that may be meant, and it gives neither of the others.
"""

from __future__ import annotations

import pathlib
import statistics
from typing import Callable, Sequence

from published_row import Row, not_measured

# MiB with batch 1 and 32: PyTorch, the best heuristic, MODeL, ROAM; and ROAM's seconds to plan.
PUBLISHED = {
    "alexnet": ((771, 798), (809, 809), (813, 923), (665, 665), (2, 3)),
    "vgg11": ((1856, 3658), (2075, 2251), (2148, 3590), (1683, 2045), (3, 3)),
    "mnasnet0_5": ((189, 932), (41, 802), (47, 796), (34, 791), (27, 27)),
    "mobilenet_v2": ((234, 2731), (86, 1691), (80, 1710), (69, 1670), (28, 29)),
    "efficientnet_b0": ((242, 3787), (140, 2772), (252, 4254), (108, 2723), (379, 460)),
    "vit_b_16": ((769, 4972), (612, 5307), (586, 7163), (483, 4670), (86, 84)),
    "roberta": ((1475, 1665), (1062, 1062), (3388, 3544), (915, 915), (221, 472)),
}
GPT2_XL = {1: 19243, 2: 32468, 4: 58995}       # MiB, in about 330 s
# Columns of PUBLISHED, and how much less than theirs ROAM says that it takes, in %.
HEADLINES = (("PyTorch, with its fragmentation", 0, 35.7), ("the best heuristic", 1, 13.3),
             ("MODeL", 2, 27.2))
OWN = 3               # ROAM's column
FASTER = 53.7         # than MODeL, whose seconds are not published by row
COMMAND = "bench/roam/figures.py"
RESERVED = "Reserved memory"
OPINION = "A second opinion on small graphs"
MACHINE = "this processor, two cores"


def _tables(path: pathlib.Path) -> dict[str, list[list[str]]]:
    """By heading ("" above the first): the cells of the table below it, line by line."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line[3:]
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            found.setdefault(heading, []).append(cells)
    return found


def lines(path: pathlib.Path, heading: str) -> list[dict[str, str]]:
    """Each line's cells by column."""
    head, _, *rest = _tables(path).get(heading) or ([], [])
    return [dict(zip(head, line)) for line in rest]


def table(path: pathlib.Path) -> dict[str, dict[str, str]]:
    """By step, as "alexnet 32": its cells by column."""
    return {line["step"]: line for line in lines(path, "")}


Pairs = Sequence[tuple[float, float]]     # MiB of a planner, and of the column beside it


def _mean(pairs: Pairs) -> float:
    return 1 - statistics.fmean(own / other for own, other in pairs)


# Of what the headline may be the average; each grows with the second and falls with the first.
# Rows stand by model, batch 1 before 32.
AVERAGES: dict[str, Callable[[Pairs], float]] = {
    "the mean over the rows": _mean,
    "the mean over batch 1": lambda pairs: _mean(pairs[::2]),
    "the mean over batch 32": lambda pairs: _mean(pairs[1::2]),
    "the median": lambda pairs: 1 - statistics.median(own / other for own, other in pairs),
    "the sums": lambda pairs: 1 - sum(own for own, _ in pairs) / sum(other for _, other in pairs),
    "the sums of batch 1": lambda pairs: AVERAGES["the sums"](pairs[::2]),
    "the sums of batch 32": lambda pairs: AVERAGES["the sums"](pairs[1::2]),
    "the mean of the ratios": lambda pairs: 1 - 1 / statistics.fmean(
        other / own for own, other in pairs),
    "the geometric mean": lambda pairs: 1 - statistics.geometric_mean(
        own / other for own, other in pairs),
}


def own_pairs(column: int) -> list[tuple[float, float]]:
    """ROAM's own rows beside that column."""
    return [(of[OWN][at], of[column][at]) for of in PUBLISHED.values() for at in (0, 1)]


def gives(column: int, headline: float) -> list[str]:
    """The averages of ROAM's own rows that give its headline, to its last digit and the rows'."""
    def range_of(average: Callable[[Pairs], float]) -> tuple[float, float]:
        pairs = own_pairs(column)
        least, most = (100 * average([(own - part, other + part) for own, other in pairs])
                       for part in (-0.5, 0.5))
        return least - 0.05, most + 0.05
    return [name for name, average in AVERAGES.items()
            if range_of(average)[0] <= headline <= range_of(average)[1]]


def _other(column: int, headline: float) -> str:
    """Where the mean of its rows does not give the headline: the averages that do."""
    names = gives(column, headline)
    if "the mean over the rows" in names:
        return ""
    said = " and ".join(f"{name}, {100 * AVERAGES[name](own_pairs(column)):.1f} %,"
                        for name in names)
    return f"; {said or 'no average of them'} {'may be meant' if names else 'gives it'}"


def _headlines(heights: dict[tuple[str, int], float], name: str) -> list[Row]:
    found = []
    for column_name, column, headline in HEADLINES:
        what = f"memory beside {column_name} as ROAM publishes it, mean over its rows"
        own = 100 * _mean(own_pairs(column))
        theirs = f"{headline} % less (its own rows: {own:.1f} %{_other(column, headline)})"
        pairs = [(height, PUBLISHED[model][column][at])
                 for (model, at), height in heights.items()]
        if not pairs:
            found.append(not_measured("ROAM", what, theirs, f"no rows in {name}"))
            continue
        ours = 100 * _mean(pairs)
        why = "" if len(pairs) == len(own_pairs(column)) else f"of {len(pairs)} rows"
        if ours < max(own, headline):
            why = f"of {len(pairs)} rows; those that are more say why"
        found.append(Row("ROAM", what, theirs, f"{ours:.1f} % less", MACHINE, COMMAND, why))
    return found


def _faster(seconds: list[tuple[float, float]]) -> Row:
    """ROAM's seconds and Firn's, by row. ROAM's factor is beside MODeL: its rows cannot give it."""
    ratios = [theirs / ours for theirs, ours in seconds]
    together = sum(theirs for theirs, _ in seconds) / sum(ours for _, ours in seconds)
    return Row("ROAM", "planning time beside ROAM's own: median, geometric mean, of the sums",
               f"{FASTER} x faster than MODeL (whose seconds are not published by row)",
               f"{statistics.median(ratios):.0f}, {statistics.geometric_mean(ratios):.0f}, "
               f"{together:.0f} x faster than ROAM", MACHINE, COMMAND,
               "other processors: ROAM's are not known here")


def rows(path: pathlib.Path) -> list[Row]:
    steps = table(path)
    found, heights = [], {}
    seconds: list[tuple[float, float]] = []
    for model, (*_, roam, planned) in PUBLISHED.items():
        for at, batch in enumerate((1, 32)):
            step = steps.get(f"{model} {batch}")
            what = f"{model}, batch {batch}: MiB with weights (seconds to plan)"
            theirs = f"{roam[at]} ({planned[at]})"
            if step is None:
                found.append(not_measured("ROAM", what, theirs, f"not in {path.name}"))
                continue
            heights[model, at] = float(step["height"])
            seconds.append((planned[at], float(step["s"])))
            less = round(heights[model, at]) <= roam[at]
            found.append(Row("ROAM", what, theirs, f"{step['height']} ({step['s']})", MACHINE,
                             COMMAND, "" if less else
                             f"its graph differs: of this one the proven bound is "
                             f"{step['bound']} MiB"))
    for batch, mib in GPT2_XL.items():
        step = steps.get(f"gpt2_xl {batch}")
        what = f"GPT2-XL, batch {batch}: MiB with weights (seconds to plan)"
        found.append(Row("ROAM", what, f"{mib} (330)", f"{step['height']} ({step['s']})", MACHINE,
                         COMMAND, "" if round(float(step["height"])) <= mib else
                         f"the proven bound is {step['bound']} MiB") if step else
                     not_measured("ROAM", what, f"{mib} (330)", f"not in {path.name}"))
    found += _headlines(heights, path.name)
    if seconds:
        found.append(_faster(seconds))
    return found + _reserved(path, heights) + _second_opinion(path)


def _reserved(path: pathlib.Path, heights: dict[tuple[str, int], float]) -> list[Row]:
    """PyTorch's column once more, of the same graphs: what its own allocator reserves for them."""
    what = "PyTorch's column measured here: memory reserved for the same steps, mean of {} rows"
    found = {line["step"]: float(line["native reserved"]) for line in lines(path, RESERVED)
             if line["program"] == "graph"}
    pairs = [(height, found[f"{model} {(1, 32)[at]}"], PUBLISHED[model][0][at])
             for (model, at), height in heights.items() if f"{model} {(1, 32)[at]}" in found]
    if not pairs:
        return [not_measured("ROAM", what.format(0), "35.7 % less", f"not in {path.name}")]
    beside = statistics.fmean(ours / theirs for _, ours, theirs in pairs)
    less = 100 * _mean([(height, ours) for height, ours, _ in pairs])
    own = 100 * _mean([(height, theirs) for height, _, theirs in pairs])
    return [Row("ROAM", what.format(len(pairs)), f"{own:.1f} % less beside ROAM's column",
                f"{less:.1f} % less", "PyTorch's allocator, software GPU",
                "bench/roam/reserved.py", "" if less >= own else
                f"the native allocator reserves {beside:.2f} of ROAM's column here: what kernels "
                "take for themselves is missing")]


def _second_opinion(path: pathlib.Path) -> list[Row]:
    """MODeL is an integer program: its own, and another exact solver, on graphs they can solve."""
    found = lines(path, OPINION)
    command = "bench/order/second_opinion.py"
    if not found:
        return [not_measured("ROAM", "orders beside proven optima", "", f"not in {path.name}")]

    def total(column: str) -> int:
        return sum(int(line[column]) for line in found)
    drawn = [line for line in found if line["MODeL's program proven"]]
    proven = sum(int(line["MODeL's program proven"].split()[0]) for line in drawn)
    asked = sum(int(line["graphs"]) for line in drawn)
    equal = sum(int(line["its firn there"]) for line in drawn)
    gap = max(float(line["worst gap, %"]) for line in found)
    cp = total("proven by CP-SAT")
    return [Row("ROAM", f"MODeL's integer program (HiGHS), {asked} graphs",
                f"{proven} optima proven, median {_median(drawn, 'its s, median')} s",
                f"{equal} of {proven} reached, median {_median(drawn, 'firn s, median')} s",
                MACHINE, command, "" if equal == proven else "not all optima"),
            Row("ROAM", f"optima proven by CP-SAT, {total('graphs')} graphs",
                f"{cp} proven", f"{total('firn there')} of {cp} reached, "
                f"{gap:.3f} % above at worst", MACHINE, command,
                "" if total("firn there") == cp else "not all optima")]


def _median(found: list[dict[str, str]], column: str) -> str:
    return f"{statistics.median(float(line[column]) for line in found):.2f}"
