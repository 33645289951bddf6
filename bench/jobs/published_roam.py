"""ROAM's figures, and Firn's from the table that bench/roam/figures.py printed."""

from __future__ import annotations

import pathlib

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
COMMAND = "bench/roam/figures.py"
MACHINE = "this processor, two cores"


def table(path: pathlib.Path) -> dict[str, dict[str, str]]:
    """By step, as "alexnet 32": its cells by column."""
    lines = [[cell.strip() for cell in line.strip().strip("|").split("|")]
             for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    head = lines[0]
    return {line[0]: dict(zip(head, line)) for line in lines[2:]}


def _less(ours: float, theirs: float) -> float:
    return 1 - ours / theirs


def rows(path: pathlib.Path) -> list[Row]:
    steps = table(path)
    found, heights = [], {}
    seconds: list[float] = []
    for model, (_, _, _, roam, planned) in PUBLISHED.items():
        for at, batch in enumerate((1, 32)):
            step = steps.get(f"{model} {batch}")
            what = f"{model}, batch {batch}: MiB with weights (seconds to plan)"
            theirs = f"{roam[at]} ({planned[at]})"
            if step is None:
                found.append(not_measured("ROAM", what, theirs, f"not in {path.name}"))
                continue
            heights[model, at] = float(step["height"])
            seconds.append(planned[at] / float(step["s"]))
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
    for name, column, theirs in (("PyTorch, with its fragmentation", 0, 35.7),
                                 ("the best heuristic", 1, 13.3), ("MODeL", 2, 27.2)):
        less = [_less(height, PUBLISHED[model][column][at])
                for (model, at), height in heights.items()]
        mean = 100 * sum(less) / len(less) if less else 0
        found.append(Row("ROAM", f"memory beside {name} as ROAM publishes it, mean of the rows",
                         f"{theirs} % less", f"{mean:.1f} % less", MACHINE, COMMAND,
                         "" if mean >= theirs else
                         "its mean is over other batches too; its own rows here give " +
                         f"{_mean_of_roam(column):.1f} %") if less else
                     not_measured("ROAM", f"memory beside {name}", f"{theirs} % less",
                                  f"no rows in {path.name}"))
    if seconds:
        found.append(Row("ROAM", "planning beside its own seconds, median of the rows",
                         "53.7 x faster than MODeL",
                         f"{sorted(seconds)[len(seconds) // 2]:.0f} x faster than ROAM", MACHINE,
                         COMMAND, "other processors: ROAM's are not known here"))
    return found


def _mean_of_roam(column: int) -> float:
    less = [_less(roam[at], of[column][at]) for of in PUBLISHED.values()
            for roam in (of[3],) for at in (0, 1)]
    return 100 * sum(less) / len(less)
