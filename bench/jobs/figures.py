#!/usr/bin/env python3
"""Whole training jobs in simulation: step time against the budget, Firn beside what people use now.

  figures.py [--jobs NAME|PREFIX,...] [--machine h200|a100|rtx4090|...] [--ssds N,...]
             [--budgets 100,90,...] [--columns remake,...] [--out DIR] [--keep DIR]
             [--iterations N] [--firn BINARY]
  figures.py --depth bert-large,... [--budget 40GiB] [--layers 12,24,48,96]
  figures.py --published teraio,teraio-ways,teraio-lifetimes,teraio-bandwidth,ssdtrain,
                         ssdtrain-rok,l2l,l2l-batches,l2l-depths,l2l-many,l2l-host
                         [--jobs NAME,...] [--batches N,...] [--layers N,...]
  figures.py --again --out DIR       # only the plots and the page, of the figures in DIR

Traces come from record.py (fake tensors, times by a roofline), or are those that `firn run --trace
PREFIX.csv` recorded (a PREFIX as a job: times as they were); runs are `firn simulate`'s: the
engine that serves programs, on modelled hardware. Budgets are parts of what the job needs when all
is in memory. Prints tables. Into DIR go jobs.json, plots and index.html: figures that are there
already stay, but for those made anew; so do budgets and columns of a job whose trace is the same.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import sys
import tempfile
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import charts  # noqa: E402
import gpus  # noqa: E402
import jobs_page  # noqa: E402
import l2l  # noqa: E402
import models  # noqa: E402
import published  # noqa: E402
import runs  # noqa: E402
import shown  # noqa: E402

DEFAULT_JOBS = ("llama3-8b", "llama3-70b-tp8", "granite-8b", "mixture-8x", "gpt-8192", "gpt-12288",
                "gpt-16384", "bert-8192", "bert-12288", "bert-16384", "t5-8192", "t5-12288",
                "t5-16384", "bert-large", "vit-large", "resnet152")
# A figure is the same one, made again, where these agree.
KEYS = {"jobs": ("job", "machine", "ssds"), "depth": ("job", "machine", "budget_bytes"),
        "teraio": ("job", "machine", "batch", "length"), "ssdtrain": ("job",),
        "rok": ("job",), "lifetimes": ("job", "machine"),
        "teraio_ways": ("job", "machine", "batch", "length", "way", "micro_batches"),
        "l2l": ("job", "machine"), "l2l_batches": ("job", "machine"),
        "l2l_depths": ("job", "machine", "layers"), "l2l_many": ("job", "machine"),
        "teraio_bandwidth": ("job", "machine", "batch", "length", "ssds"),
        "l2l_host": ("job", "machine", "batch")}

PUBLISHED = ("teraio", "teraio-ways", "teraio-lifetimes", "teraio-bandwidth", "ssdtrain",
             "ssdtrain-rok", "l2l", "l2l-batches", "l2l-depths", "l2l-many", "l2l-host")


def write_whole(path: pathlib.Path, text: str) -> None:
    """Results are there whole or not at all."""
    unfinished = path.with_suffix(path.suffix + ".part")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)


class Results:
    """All that was found, in a folder; kept after every figure."""

    def __init__(self, folder: pathlib.Path | None):
        self.folder = folder
        self.found: dict[str, Any] = {"runs": [], **{kind: [] for kind in KEYS}}
        if folder and (folder / "jobs.json").exists():
            self.found |= json.loads((folder / "jobs.json").read_text(encoding="utf-8"))

    def ran(self, words: list[str]) -> None:
        versions = ", ".join(f"{name} {importlib.metadata.version(name)}"
                             for name in ("torch", "transformers"))
        # (Where things lie changes nothing.)
        told = [word for before, word in zip([""] + words, words)
                if not {"--keep", "--out", "--firn"} & {before, word}]
        self.found["runs"].append({"date": datetime.date.today().isoformat(),
                                   "command": " ".join(["figures.py", *told]),
                                   "versions": versions})

    def add(self, kind: str, result: dict[str, Any]) -> None:
        def same(each):
            return all(each[key] == result[key] for key in KEYS[kind])
        of = self.found[kind]
        at = next((at for at, each in enumerate(of) if same(each)), len(of))
        of[at:at + 1] = [runs.added_to(each, result) for each in of[at:at + 1]] or [result]
        result = of[at]
        shown.SHOWN[kind](result)
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / "jobs.json", json.dumps(self.found, indent=1) + "\n")

    def draw(self) -> None:
        if not self.folder:
            return
        curves = [each for each in self.found["jobs"] if "error" not in each]
        for machine in dict.fromkeys(each["machine"] for each in curves):
            usual = gpus.MACHINES[machine].ssds
            of = [each for each in curves if each["machine"] == machine]
            several = {each["job"] for each in of if each["ssds"] != usual}
            charts.budgets([each for each in of if each["ssds"] == usual] or of,
                           self.folder / f"{machine}.png")
            if several:
                charts.ssds([each for each in of if each["job"] in several],
                            self.folder / f"{machine}-ssds.png")
        if self.found["depth"]:
            charts.depth(self.found["depth"], self.folder / "depth.png")
        rok = [each for each in self.found["rok"] if "error" not in each]
        if rok:
            charts.rok(rok, self.folder / "rok.png")
        write_whole(self.folder / "index.html", jobs_page.render(self.found, self.folder))


def numbers(parser: argparse.ArgumentParser, option: str, words: str, most: int) -> list[int]:
    if not all(each.isdigit() and 0 < int(each) <= most for each in words.split(",")):
        parser.error(f"{option}: numbers up to {most} between commas are wanted, not {words}")
    return [int(each) for each in words.split(",")]


def there(parser: argparse.ArgumentParser, names: list[str]) -> None:
    wrong = [each for each in names if each not in models.JOBS and
             not os.path.exists(each + ".kernels.csv")]
    if wrong:
        parser.error(f"no such job: {', '.join(wrong)} (there are {', '.join(models.JOBS)}; or the "
                     "prefix of a recorded trace, with PREFIX.kernels.csv)")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", help="NAME|PREFIX,..., or those of --published [all]")
    parser.add_argument("--machine", choices=sorted(gpus.MACHINES), default="h200")
    parser.add_argument("--ssds", help="one curve for each number [as the machine has]")
    parser.add_argument("--budgets", default="100,90,80,70,60,50,40,30,20")
    parser.add_argument("--columns", default=",".join(runs.COLUMNS), help="of --jobs [all]")
    parser.add_argument("--depth", metavar="JOB,...")
    parser.add_argument("--budget", default="40GiB", help="of --depth")
    parser.add_argument("--layers", default="12,24,48,96", help="of --depth, l2l-depths")
    parser.add_argument("--batches", default=",".join(map(str, l2l.BATCHES)),
                        help="of l2l-batches")
    parser.add_argument("--published", metavar="SYSTEM,...", help=", ".join(PUBLISHED))
    parser.add_argument("--again", action="store_true", help="draw what --out holds, and no more")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the traces, used again")
    parser.add_argument("--iterations", type=int, default=6, help="the last half of them counts")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="jobs at a time")
    parser.add_argument("--firn", type=pathlib.Path,
                        default=ROOT / "build/allocator/command/firn")
    given = parser.parse_args()
    given.budgets = numbers(parser, "--budgets", given.budgets, 1000)
    given.batches = numbers(parser, "--batches", given.batches, 10_000)
    given.layers = numbers(parser, "--layers", given.layers, 10_000)
    given.ssds = numbers(parser, "--ssds", given.ssds, 64) if given.ssds else \
        [gpus.MACHINES[given.machine].ssds]
    given.columns = tuple(given.columns.split(","))
    given.jobs = given.jobs.split(",") if given.jobs else []
    given.depth = given.depth.split(",") if given.depth else []
    given.published = given.published.split(",") if given.published else []
    there(parser, given.jobs)
    if not set(given.depth) <= set(models.JOBS):
        parser.error(f"--depth: no such job: {', '.join(set(given.depth) - set(models.JOBS))}")
    if not set(given.published) <= set(PUBLISHED):
        parser.error(f"--published: there are {', '.join(PUBLISHED)}, not {given.published}")
    if not set(given.columns) <= set(runs.COLUMNS):
        parser.error(f"--columns: there are {', '.join(runs.COLUMNS)}, not "
                     f"{', '.join(set(given.columns) - set(runs.COLUMNS))}")
    if not given.budget.removesuffix("GiB").isdigit():
        parser.error(f"--budget: whole GiB are wanted, as 40GiB, not {given.budget}")
    if given.iterations < 4:
        parser.error("--iterations: the period is found in the third: at least 4")
    if given.again and not given.out:
        parser.error("--again: --out is wanted")
    if not os.access(given.firn, os.X_OK):
        parser.error(f"{given.firn} is not there (bash bench/setup.sh builds it; or --firn)")
    return given


def tasks(given: argparse.Namespace, runner: runs.Runner):
    """(kind, what finds one figure of it)"""
    machine = gpus.MACHINES[given.machine]
    budget, no_jobs = int(given.budget.removesuffix("GiB")) << 30, not given.jobs
    for job in given.depth:
        yield "depth", lambda job=job: runner.depth(job, machine, budget, given.layers)
    if "teraio" in given.published:
        for case in (each for each in published.TERAIO_CASES if each[0] in given.jobs or no_jobs):
            yield "teraio", lambda case=case: published.teraio(runner, *case)
    if "teraio-ways" in given.published:
        for case in (each for each in published.TERAIO_WAYS if each[0] in given.jobs or no_jobs):
            yield "teraio_ways", lambda case=case: published.teraio_way(runner, *case)
    if "teraio-lifetimes" in given.published:
        for job in dict.fromkeys(each[0] for each in published.TERAIO_WAYS):
            if job in given.jobs or no_jobs:
                yield "lifetimes", lambda job=job: published.teraio_lifetimes(runner, job)
    if "teraio-bandwidth" in given.published:
        for name in ("teraio", "teraio-titan"):
            for ssds in published.TERAIO_SSDS:
                yield "teraio_bandwidth", lambda name=name, ssds=ssds: \
                    published.teraio_bandwidth(runner, name, ssds)
    if "ssdtrain" in given.published:
        for job in (each for each in published.SSDTRAIN_JOBS if each in given.jobs or no_jobs):
            yield "ssdtrain", lambda job=job: published.ssdtrain(runner, job)
    if "ssdtrain-rok" in given.published:
        for job in (each for each in published.SSDTRAIN_JOBS if each in given.jobs or no_jobs):
            yield "rok", lambda job=job: published.rok(runner, job)
    if "l2l" in given.published:
        for job in (each for each in l2l.ORDER_JOBS if each in given.jobs or no_jobs):
            yield "l2l", lambda job=job: l2l.orders(runner, job, machine)
    if "l2l-batches" in given.published:
        yield "l2l_batches", lambda: l2l.batches(runner, gpus.MACHINES["v100"], given.batches)
    if "l2l-depths" in given.published:
        for count in given.layers:
            yield "l2l_depths", lambda count=count: l2l.depth(runner, gpus.MACHINES["v100"], count)
    if "l2l-many" in given.published:
        yield "l2l_many", lambda: l2l.many_parameters(runner, gpus.MACHINES["v100"])
    if "l2l-host" in given.published:
        for case in (each for each in l2l.HOST_CASES if each.job in given.jobs or no_jobs):
            yield "l2l_host", lambda case=case: l2l.hosts(runner, case)
    if given.depth or given.published or given.again:
        return
    for job in given.jobs or DEFAULT_JOBS:
        for ssds in given.ssds:
            yield "jobs", lambda job=job, ssds=ssds: runner.curve(
                job, dataclasses.replace(machine, ssds=ssds), given.budgets, given.columns)


def main() -> int:
    given = parse()
    results = Results(given.out)
    with tempfile.TemporaryDirectory(prefix="firn-jobs-") as scratch:
        folder = given.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        runner = runs.Runner(given.firn, folder, given.iterations)
        found = list(tasks(given, runner))
        if found:
            results.ran(sys.argv[1:])
        with concurrent.futures.ThreadPoolExecutor(given.workers) as pool:
            for kind, result in zip((kind for kind, _ in found),
                                    pool.map(lambda task: task[1](), found)):
                results.add(kind, result)
    results.draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
