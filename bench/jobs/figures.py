#!/usr/bin/env python3
"""Whole training jobs in simulation: step time against the budget, Firn beside what people use now.

  figures.py [--jobs NAME,...] [--machine h200|a100|rtx4090] [--ssds N] [--budgets 100,90,...]
             [--out DIR] [--firn BINARY]
  figures.py --depth gpt-8192 [--budget 40GiB]

Traces come from record.py (fake tensors, roofline times), runs from `firn simulate`: the engine that
serves programs, on modelled hardware. Budgets are parts of what the job needs when all is in memory.
Writes jobs.json and a plot per job into DIR, and prints a table.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import gpus  # noqa: E402
import models  # noqa: E402
import others  # noqa: E402

MACHINES = {"h200": ("h200", "gen5"), "a100": ("a100", "gen4"), "rtx4090": ("rtx4090", "gen4")}
DEFAULT_JOBS = ("gpt-8192", "bert-8192", "t5-8192", "llama3-8b", "granite-8b", "llama3-70b-tp8",
                "mixture-8x", "bert-large", "vit-large", "resnet152")
WAYS = ("plain", "recompute", "save-on-cpu")


def run(words, **options):
    return subprocess.run([str(each) for each in words], capture_output=True, text=True, **options)


def record(job, gpu, way, folder, layers=None):
    prefix = folder / f"{job}-{gpu}-{way}-{layers or 'all'}"
    done = prefix.with_suffix(".json")
    if not done.exists():
        words = [sys.executable, HERE / "record.py", job, prefix, "--gpu", gpu, "--way", way]
        ran = run(words + (["--layers", layers] if layers else []))
        if ran.returncode:
            return None, (ran.stderr.strip().splitlines() or ["no word"])[-1]
        done.write_text(ran.stdout.strip().splitlines()[-1])
    return prefix, json.loads(done.read_text())


def simulate(firn, prefix, budget, machine, ssds, host, policy):
    gpu, ssd = gpus.GPUS[MACHINES[machine][0]], gpus.SSDS[MACHINES[machine][1]]
    ran = run([firn, "simulate", prefix, "--gpu-memory", f"{budget >> 20}MiB", "--ssd-read",
               f"{ssd[0]}GB/s", "--ssd-write", f"{ssd[1]}GB/s", "--ssds", ssds, "--pcie",
               f"{gpu.link_gbs}GB/s", "--host", host, "--policy", policy, "--json"])
    if ran.returncode:
        return {"error": (ran.stderr.strip().splitlines() or ["no word"])[-1]}
    found = json.loads(ran.stdout)
    return {key: found[key] for key in ("ideal_s", "steady_s", "bytes_spilled", "bytes_faulted",
                                        "bytes_written", "bytes_read", "stall_s", "plan_s",
                                        "peak_device_bytes")}


def one_job(given, job, folder):
    gpu_name = MACHINES[given.machine][0]
    gpu, ssd = gpus.GPUS[gpu_name], gpus.SSDS[MACHINES[given.machine][1]]
    ways = {}
    for way in WAYS:
        prefix, found = record(job, gpu_name, way, folder)
        ways[way] = (prefix, found) if prefix else (None, {"error": found})
    prefix, plain = ways["plain"]
    if prefix is None:
        return {"job": job, "error": plain["error"]}
    trace = others.read(str(prefix))
    weights = plain["persistent_bytes"] // 3   # one of: weights and two states alike
    again = ways["recompute"][1]
    rows = []
    for percent in given.budgets:
        budget = plain["peak_bytes"] * percent // 100
        row = {"percent": percent, "budget_bytes": budget}
        for policy in ("lifetime", "age"):
            row[policy] = simulate(given.firn, prefix, budget, given.machine, given.ssds,
                                   given.host, policy)
        # What has to be away at the peak has to leave in each step.
        least = max(plain["seconds"], (plain["peak_bytes"] - budget) / gpu.link_gbs / 1e9)
        row["link_bound_s"] = least
        for way in WAYS[1:]:
            found = ways[way][1]
            row[way] = {"error": found["error"]} if "error" in found else \
                {"steady_s": found["seconds"]} if found["peak_bytes"] <= budget else \
                {"error": "out of memory"}
        row["nothing"] = {"steady_s": plain["seconds"]} if percent >= 100 else \
            {"error": "out of memory"}
        paged = others.paging_s(trace, budget)
        row["paging"] = {"steady_s": paged} if paged else {"error": "a kernel needs more"}
        if "error" in again:
            row["streaming"] = {"error": again["error"]}
        else:
            needs, seconds = others.streaming(plain, again, weights, models.JOBS[job].layers or 50,
                                              gpu, given.ssds * ssd[0], given.ssds * ssd[1])
            row["streaming"] = {"steady_s": seconds} if needs <= budget else \
                {"error": "out of memory"}
        rows.append(row)
    return {"job": job, "machine": given.machine, "ssds": given.ssds, "host": given.host,
            "times": "roofline", **{key: plain[key] for key in
                                    ("kernels", "seconds", "peak_bytes", "persistent_bytes")},
            "budgets": rows}


COLUMNS = ("lifetime", "age", "recompute", "save-on-cpu", "streaming", "paging", "nothing")


def fraction(result, row, column):
    return result["seconds"] / row[column]["steady_s"] if "steady_s" in row[column] else None


def table(results):
    for result in results:
        if "error" in result:
            print(f"{result['job']}: {result['error']}")
            continue
        print(f"\n{result['job']} on {result['machine']}, {result['ssds']} SSDs: "
              f"{result['kernels']} kernels, {result['seconds']:.3f} s, "
              f"{result['peak_bytes'] / 2**30:.1f} GiB when all is in memory "
              f"({result['persistent_bytes'] / 2**30:.1f} persistent)")
        print("  budget   " + "".join(f"{each:>12}" for each in COLUMNS) + "  link's bound")
        for row in result["budgets"]:
            cells = [fraction(result, row, each) for each in COLUMNS]
            print(f"  {row['percent']:>4} %   " +
                  "".join(f"{'-' if each is None else format(each, '.3f'):>12}"
                          for each in cells) +
                  f"{result['seconds'] / row['link_bound_s']:>14.3f}")


def plot(result, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(7.5, 4.5))
    names = {"lifetime": "Firn, by lifetimes", "age": "Firn, by age",
             "recompute": "recomputation", "save-on-cpu": "save_on_cpu",
             "streaming": "layers streamed (bound)", "paging": "page faults",
             "nothing": "PyTorch as it is"}
    marks = dict(zip(COLUMNS, "os^vD*X"))
    for column in COLUMNS:
        points = [(row["percent"], fraction(result, row, column)) for row in result["budgets"]]
        points = [each for each in points if each[1] is not None]
        if points:
            axes.plot(*zip(*points), marker=marks[column], label=names[column],
                      linewidth=2.2 if column == "lifetime" else 1.2)
    axes.plot([row["percent"] for row in result["budgets"]],
              [result["seconds"] / row["link_bound_s"] for row in result["budgets"]],
              color="gray", linestyle=":", label="the link's bound")
    axes.set_xlabel(f"budget, % of {result['peak_bytes'] / 2**30:.1f} GiB")
    axes.set_ylabel("speed, part of unlimited")
    axes.set_ylim(0, 1.05)
    axes.invert_xaxis()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title(f"{result['job']}, {result['machine']}, {result['ssds']} SSDs (simulated)")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def write_whole(path, text):
    """Results are there whole or not at all."""
    unfinished = path.with_suffix(path.suffix + ".part")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)


def depth(given, folder):
    """L2L's sweep: deeper and deeper, the optimizer's state included, at one budget."""
    rows = []
    gpu_name = MACHINES[given.machine][0]
    for layers in (12, 24, 48, 96):
        prefix, plain = record(given.depth, gpu_name, "plain", folder, layers)
        if prefix is None:
            print(f"{layers} layers: {plain}")
            continue
        found = simulate(given.firn, prefix, given.depth_budget, given.machine, given.ssds,
                         given.host, "lifetime")
        part = plain["seconds"] / found["steady_s"] if "steady_s" in found else None
        rows.append({"layers": layers, "peak_bytes": plain["peak_bytes"],
                     "seconds": plain["seconds"], "part": part, **found})
        print(f"{layers:>3} layers: {plain['peak_bytes'] / 2**30:7.1f} GiB, {plain['seconds']:.3f} "
              f"s; with {given.depth_budget / 2**30:.0f} GiB: " +
              (found["error"] if part is None else f"{part:.3f} of unlimited"), flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default=",".join(DEFAULT_JOBS))
    parser.add_argument("--machine", choices=sorted(MACHINES), default="h200")
    parser.add_argument("--ssds", type=int, default=4)
    parser.add_argument("--host", default="64GiB")
    parser.add_argument("--budgets", default="100,90,80,70,60,50,40,35,30,20")
    parser.add_argument("--depth", metavar="JOB")
    parser.add_argument("--budget", default="40GiB", help="of --depth")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the traces, used again")
    parser.add_argument("--firn", type=pathlib.Path,
                        default=ROOT / "build/allocator/command/firn")
    given = parser.parse_args()
    if not all(each.isdigit() and 0 < int(each) <= 1000 for each in given.budgets.split(",")):
        parser.error(f"--budgets: percents between commas are wanted, not {given.budgets}")
    given.budgets = [int(each) for each in given.budgets.split(",")]
    jobs = given.jobs.split(",")
    wrong = [each for each in jobs + [given.depth or jobs[0]] if each not in models.JOBS]
    if wrong:
        parser.error(f"no such job: {', '.join(wrong)} (there are {', '.join(models.JOBS)})")
    if not given.budget.removesuffix("GiB").isdigit():
        parser.error(f"--budget: whole GiB are wanted, as 40GiB, not {given.budget}")
    if not os.access(given.firn, os.X_OK):
        parser.error(f"{given.firn} is not there (bash bench/setup.sh builds it; or --firn)")
    with tempfile.TemporaryDirectory(prefix="firn-jobs-") as scratch:
        folder = given.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if given.depth:
            given.depth_budget = int(given.budget.removesuffix("GiB")) << 30
            results = {"depth": depth(given, folder)}
        else:
            results = {"jobs": []}
            with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
                for result in pool.map(lambda job: one_job(given, job, folder), jobs):
                    results["jobs"].append(result)
                    table([result])
                    sys.stdout.flush()
        if given.out:
            given.out.mkdir(parents=True, exist_ok=True)
            write_whole(given.out / "jobs.json", json.dumps(results, indent=1) + "\n")
            for result in results.get("jobs", []):
                if "error" not in result:
                    plot(result, given.out / f"{result['job']}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
