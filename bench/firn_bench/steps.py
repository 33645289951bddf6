"""The benches: each runs programs of this repository and peers beside them, in turn, and gives
figures. A bench that cannot run says why and the suite goes on."""

from __future__ import annotations

import csv
import json
import pathlib
import re
import sys
from typing import Callable

from firn_bench.calls import calls, operators, replay
from firn_bench.context import BUILD, ROOT, SOFTWARE, Context, LeftOut
from firn_bench.engine import engine, moving
from firn_bench.figures import Figure
from firn_bench.stores import checksum, store


def launch(context: Context) -> list[Figure]:
    """A launch through the library in front of the driver, beside the driver alone."""
    said = context.run([BUILD / "bench/preload/launch", BUILD / "bench/preload/libno_kernel.so",
                        1000, 100_000 if context.quick else 1_000_000], 300,
                       LD_PRELOAD=str(BUILD / "allocator/preload/libfirn_preload.so"),
                       LD_LIBRARY_PATH=str(SOFTWARE.parent), FIRN_DEVICE="software",
                       FIRN_GPU_MEMORY="8GiB", FIRN_LIB=str(BUILD / "backing/gpu"))
    figures = []
    for line in said.splitlines():
        found = re.match(r"\s*(\d+ blocks live, .+?)\s+driver alone\s+([\d.]+) ns, added\s+"
                         r"(-?[\d.]+) ns", line)
        if found:
            alone = float(found.group(2))
            figures.append(Figure("launch", found.group(1), "ns", alone + float(found.group(3)),
                                  peers={"the driver alone": alone}))
    if not figures:
        raise LeftOut("launch printed no figures")
    return figures


def deciding(context: Context) -> list[Figure]:
    """What learning an event takes, and a decision against the events of a period."""
    figures = []
    for what, ns in re.findall(r"(\S[^:\n]*): ([\d.]+) ns per event",
                               context.run([BUILD / "bench/lifetimes/history_bench"], 300)):
        figures.append(Figure("deciding", f"an event, {what}", "ns", float(ns)))
    sizes = (1000, 10_000) if context.quick else (1000, 10_000, 100_000)
    said = context.run([BUILD / "bench/lifetimes/decide_bench", *sizes], 600)
    for line in said.splitlines()[1:]:
        cells = line.split()
        figures.append(Figure("deciding", f"a decision, {cells[2]} events", "ms", float(cells[3])))
    return figures


def layout(context: Context) -> list[Figure]:
    """Static layouts of random instances: height over load, and seconds."""
    figures = []
    for count in (1000, 10_000) if context.quick else (1000, 10_000, 100_000):
        file = context.folder / f"{count}.csv"
        _instance(file, count)
        found = json.loads(context.run([BUILD / "allocator/command/firn", "layout", file,
                                        "--deadline", "2s", "--json"], 60))
        figures.append(Figure("layout", f"{count:,} buffers, height over load", "",
                              found["height"] / found["load"]))
        figures.append(Figure("layout", f"{count:,} buffers", "s", found["seconds"]))
    return figures


def _instance(file: pathlib.Path, count: int) -> None:
    import random
    draw = random.Random(1)
    with open(file, "w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out)
        rows.writerow(("id", "lower", "upper", "size"))
        for each in range(count):
            begin = draw.randrange(10 * count)
            length = max(1, int(draw.paretovariate(1.1) * 10))
            rows.writerow((each, begin, begin + length,
                           max(1, int(draw.paretovariate(1.2) * 64)) * 64))


def jobs(context: Context) -> list[Figure]:
    """Whole training jobs in simulation: speed at parts of the memory (bench/jobs)."""
    out = context.folder / "jobs"
    names = "gpt-8192,vit-large" if context.quick else \
        "gpt-8192,bert-8192,t5-8192,llama3-8b,granite-8b,mixture-8x,bert-large,vit-large,resnet152"
    context.run([sys.executable, ROOT / "bench/jobs/figures.py", "--jobs", names, "--budgets",
                 "100,80,50" if context.quick else "100,80,60,50,40,20", "--iterations", 4, "--out",
                 out], 3000)
    figures = []
    for job in json.loads((out / "jobs.json").read_text())["jobs"]:
        if "error" in job:
            context.left_out.append(f"jobs, {job['job']}: {job['error']}")
            continue
        for row in job["budgets"]:
            def part(column):
                return job["seconds"] / row[column]["steady_s"]
            if "steady_s" not in row["lifetime"]:
                context.left_out.append(f"jobs, {job['job']} at {row['percent']} %: "
                                        f"{row['lifetime']['error']}")
                continue
            figures.append(Figure(
                "jobs", f"{job['job']} at {row['percent']} %", "of unlimited", part("lifetime"),
                better="higher",
                peers={column: part(column)
                       for column in ("bound", "age", "recompute", "save-on-cpu", "streaming",
                                      "paging")
                       if "steady_s" in row[column]}))
    return figures


STEPS: dict[str, Callable[[Context], list[Figure]]] = {
    each.__name__: each for each in (calls, replay, operators, engine, launch, moving, checksum,
                                     store, deciding, layout, jobs)}
