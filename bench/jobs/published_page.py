#!/usr/bin/env python3
"""Every figure that TERAIO, SSDTrain, ROAM and L2L publish, beside Firn's, as one page.

  published_page.py [--results DIR] [--out FILE.html]

Firn's figures are those in bench/results/jobs/jobs.json (figures.py) and bench/roam/RESULTS.md
(bench/roam/figures.py); nothing is measured here. A figure that neither holds is "not measured".
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import sys
from typing import Any, Iterator

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
sys.path.append(str(HERE.parent))
import html_pages  # noqa: E402
import published_roam  # noqa: E402
from published_row import Row, command_of, not_measured  # noqa: E402


NEAR = .95     # of ideal
LONGER = .01   # than with unlimited memory


def part(row: dict[str, Any], ran: dict[str, Any]) -> float | None:
    return row["seconds"] / ran["steady_s"] if "steady_s" in ran else None


def best_of(row: dict[str, Any], names: tuple[str, ...]) -> tuple[str, float] | None:
    parts = [(name, part(row, row[name])) for name in names if name in row]
    parts = [each for each in parts if each[1] is not None]
    return max(parts, key=lambda each: each[1]) if parts else None


def teraio(found: dict[str, Any]) -> Iterator[Row]:
    cases: dict[str, list[float]] = {}
    for kind, option in (("teraio", "teraio"), ("teraio_ways", "teraio-ways")):
        for row in found.get(kind, []):
            ours = best_of(row, ("lifetime", "remake"))
            if not ours:
                continue
            way = f"{row['way']} in {row['micro_batches']}" if "way" in row else "plain"
            what = f"{row['job']}, {row['batch']} x {row['length']}, {way}: part of ideal"
            why = ""
            if ours[1] < 0.807:
                bound = best_of(row, ("bound_remake", "bound"))
                why = f"no mover of bytes reaches more than {bound[1]:.3f} ({bound[0]})" if bound \
                    else f"a plan like TERAIO's, by the same engine, reaches " \
                         f"{part(row, row['greedy']) or 0:.3f}"
            fits = row["peak_bytes"] <= row["budget_bytes"]
            if not fits:
                cases.setdefault(row["job"], []).append(ours[1])
            yield Row("TERAIO", what, ".807 (mean of its cases)", f"{ours[1]:.3f} "
                      + (f"(fits: {row['peak_bytes'] / 2**30:.0f} GiB)" if fits else
                         f"({ours[0]})"), row["words"], command_of(found, option, row["job"]), why)
    if cases:
        best = [max(each) for each in cases.values()]
        yield Row("TERAIO", "part of ideal, mean over models of the best case that does not fit",
                  ".807", f"{sum(best) / len(best):.3f} ({len(best)} models)", "as above",
                  command_of(found, "teraio"),
                  "" if sum(best) / len(best) >= .807 else "see the cases above")
    for row in (each for each in found.get("lifetimes", []) if "active_share_mean" in each):
        command = command_of(found, "teraio-lifetimes", row["job"])
        yield Row("TERAIO", f"{row['job']}: active part of the footprint, on average", "1.7 %",
                  f"{100 * row['active_share_mean']:.2f} %", row["words"], command,
                  "a property of the job, not of Firn")
        yield Row("TERAIO", f"{row['job']}: tensors inactive for more than 10 ms", "over 40 %",
                  f"{100 * row['tensors_inactive_over_10ms_share']:.1f} %", row["words"], command,
                  "a property of the job, not of Firn")
    planned = [row for row in found.get("teraio", []) if "plan_s" in row.get("lifetime", {})]
    for job in dict.fromkeys(row["job"] for row in planned):
        worst = max(row["lifetime"]["plan_s"] for row in planned if row["job"] == job)
        yield Row("TERAIO", f"{job}: planning, at most", "31 s (8B) to 397 s (70B)",
                  f"{worst:.2f} s of a processor an iteration", "this processor",
                  command_of(found, "teraio", job))
    yield from bandwidths(found)


def deepspeed(results: pathlib.Path) -> Iterator[Row]:
    """Of the last results of bench/deepspeed/bytes_moved.py; `results`: their folder."""
    files = sorted(results.glob("deepspeed-bytes-*.json"))
    found = json.loads(files[-1].read_text(encoding="utf-8")) if files else \
        {"cases": [], "left_out": []}
    for case in found["cases"]:
        theirs = case["deepspeed"]
        for ours in case["firn"]:
            more = ours["to_host"] + ours["to_device"] > theirs["to_host"] + theirs["to_device"]
            why = ("the optimizer's states cross the link, for it runs on the GPU; DeepSpeed "
                   "steps it on the processor") if more else ""
            yield Row("TERAIO", f"{case['case']}, bytes over the link in a step, in the "
                      f"{case['budget_bytes'] / 2**20:.0f} MiB that it reached; with Firn "
                      f"{ours['way']}, {ours['unlimited']['peak_bytes'] / 2**20:.0f} MiB",
                      f"no such figure; DeepSpeed here: {_mib(theirs)}"
                      + (f"; bits {_bits(theirs)}" if "equal" in theirs else ""),
                      f"{_mib(ours)}; bits {_bits(ours)}",
                      f"{found['deepspeed']}, GPU in software, {found['machine']['processor']}, "
                      f"{found['machine']['cores']} cores",
                      f"{found['command']} ({found['date']})",
                      "; ".join(filter(None, [
                          why, *(f"{name}: {of['copies']}" for name, of in (
                              ("DeepSpeed", theirs), ("Firn", ours)) if "copies" in of)])))
    for reason in found["left_out"]:
        yield not_measured("TERAIO", "bytes over the link in a step", "no such figure", reason)
    yield not_measured("TERAIO", "speed beside ZeRO-Offload and ZeRO-Infinity", "1.47 x",
                       "a step's time needs a real GPU")


def _mib(of: dict[str, Any]) -> str:
    files = (f"; {of['to_files'] / 2**20:.1f} to files, {of['from_files'] / 2**20:.1f} from them"
             if "to_files" in of else "")
    return f"{of['to_host'] / 2**20:.1f} MiB out, {of['to_device'] / 2**20:.1f} in{files}"


def _bits(of: dict[str, Any]) -> str:
    """Equal to those of the run with all of the memory, or how far from them."""
    apart = of.get("differences", {})
    return "equal" if of["equal"] else "differ" + (
        f" (losses by up to {apart['losses_most']:.2g})" if apart else "")


def bandwidths(found: dict[str, Any]) -> Iterator[Row]:
    what, theirs = "SSD bandwidth at which 2 x H100 are near ideal", "32 to 48 GB/s per GPU"
    swept = [row for row in found.get("teraio_bandwidth", []) if "steady_s" in row["lifetime"]]
    for machine in dict.fromkeys(row["machine"] for row in swept):
        rows = sorted((row for row in swept if row["machine"] == machine),
                      key=lambda row: row["ssds"])
        ran = [f"{row['write_gbs']:g} GB/s: {part(row, row['lifetime']):.3f} moved"
               + (f" (any mover {part(row, row['bound']):.3f})" if part(row, row["bound"]) else "")
               + (f", {part(row, row['remake']):.3f} with values made again"
                  if part(row, row["remake"]) else "") for row in rows]
        near = {way: next((f"{row['write_gbs']:g} GB/s" for row in rows
                           if (part(row, row[way]) or 0) >= NEAR), "none of these")
                for way in ("lifetime", "remake")}
        yield Row("TERAIO", f"{rows[0]['job']}, {rows[0]['batch']} x {rows[0]['length']}: {what}",
                  theirs, "; ".join(ran), f"{machine}, SSDs of "
                  f"{rows[0]['write_gbs'] / rows[0]['ssds']:g} GB/s each way, no host memory",
                  command_of(found, "teraio-bandwidth"),
                  f"{NEAR:g} of ideal by moving from {near['lifetime']}, with values made again "
                  f"from {near['remake']}")
    if not swept:
        yield not_measured("TERAIO", what, theirs,
                           "figures.py --published teraio-bandwidth was not run")


def ssdtrain(found: dict[str, Any]) -> Iterator[Row]:
    for row in (each for each in found.get("ssdtrain", []) if "activations" in each):
        command = command_of(found, "ssdtrain", row["job"])
        moved, again = row["activations"]["down"], row["activations_remake"]["down"]
        most = row["activations_bound"]["down"]
        why = f"moving alone saves {100 * moved:.0f} % of the {100 * most:.0f} % that any mover " \
              "could" if max(moved, again) < .47 else ""
        yield Row("SSDTrain", f"{row['job']}: activations' peak, step time unchanged",
                  "28 to 40 % less, up to 47 %", f"{100 * max(moved, again):.0f} % less "
                  f"({100 * moved:.0f} by moving alone)", row["words"], command, why)
        needed = row["activations_bytes"] / (row["seconds"] / 2) / 1e9
        yield Row("SSDTrain", f"{row['job']}: write bandwidth to move all activations",
                  "at most 12.1 GB/s", f"{needed:.1f} GB/s", row["words"], command,
                  "" if needed <= 12.1 else
                  "all bytes by half a step at a roofline's speed; its own kernels were slower")
    for row in (each for each in found.get("rok", []) if each.get("points")):
        keep, recompute, ours = (max((each for each in row["points"] if each["way"] == way),
                                     key=lambda each: each["batch"])
                                 for way in ("keep", "recompute", "remake"))
        less = ours["bytes"] < recompute["bytes"]
        yield Row("SSDTrain", f"{row['job']}, batch {keep['batch']}: the curve's ends",
                  "the throughput of keeping, less memory than recomputing",
                  f"{ours['sequences_s'] / keep['sequences_s']:.3f} of keeping, "
                  f"{ours['bytes'] / recompute['bytes']:.2f} of recomputation's memory",
                  row["words"], command_of(found, "ssdtrain-rok", row["job"]),
                  "" if less else "values move as fast as the SSDs write, and no faster")
    if not found.get("rok"):
        yield not_measured("SSDTrain", "recompute, offload, keep curve", "its figure 9",
                           "figures.py --published ssdtrain-rok was not run")


def l2l(found: dict[str, Any]) -> Iterator[Row]:
    for result in found.get("l2l_batches", []):
        command = command_of(found, "l2l-batches")
        for row in result["rows"]:
            loop, relay = row["loop"], row["relay"]
            if "steady_s" not in relay:
                continue
            less = 1 - relay["budget_bytes"] / loop["peak_bytes"]
            faster = loop["seconds"] / relay["steady_s"] - 1
            yield Row("L2L", f"BERT-Large, batch {row['batch']}: device memory",
                      "45 % less", f"{100 * less:.0f} % less", result["words"], command,
                      "" if less >= .45 else "a part's working set is most of so small a step")
            yield Row("L2L", f"BERT-Large, batch {row['batch']}: throughput, beside a loop of "
                      f"{row['loop_part']}", "40 % more", f"{100 * faster:+.0f} %",
                      result["words"], command, "" if faster >= .4 else
                      "layers are recomputed, and a roofline knows no gain of larger products")
    if not found.get("l2l_batches"):
        yield not_measured("L2L", "BERT-Large: memory and throughput at batches up to 256",
                           "45 % less, 40 % more", "figures.py --published l2l-batches was not run")
    yield from depths(found)
    for row in (each for each in found.get("l2l", []) if "orders" in each):
        for percent in (50, 20):
            ran = [(order["order"], row["seconds"] / each["steady_s"])
                   for order in row["orders"] for each in order.get("budgets", [])
                   if each["percent"] == percent and "steady_s" in each]
            relay = max((each for each in ran if each[0].startswith("relay")),
                        key=lambda each: each[1], default=None)
            best = max(ran, key=lambda each: each[1])
            yield Row("L2L", f"{row['job']} at {percent} % of its memory, as a part of unlimited "
                      "speed", "no such figure", f"{best[1]:.3f} ({best[0]}); L2L's order "
                      + (f"{relay[1]:.3f}" if relay else "does not run"), row["words"],
                      command_of(found, "l2l", row["job"]))
    yield from l2l_hosts(found)
    what = "50 B parameters on one V100 of 16 GB, 512 GB of host memory"
    many = [each for each in found.get("l2l_many", []) if "steady_s" in each]
    for row in many:
        yield Row("L2L", what, "runs",
                  f"runs, at {row['seconds'] / row['steady_s']:.3f} of its kernels' speed: "
                  f"{row['persistent_bytes'] / 1e9:.0f} GB of parameters and states, updated on "
                  "the device, states in bf16", row["words"], command_of(found, "l2l-many"))
    if not many:
        yield not_measured("L2L", what, "runs", "figures.py --published l2l-many was not run")


def depths(found: dict[str, Any]) -> Iterator[Row]:
    ran = sorted((row for row in found.get("l2l_depths", []) if "steady_s" in row.get("ahead", {})),
                 key=lambda row: row["layers"])
    if not ran:
        yield not_measured("L2L", "BERT-Large, deeper: device memory", "constant",
                           "figures.py --published l2l-depths was not run")
        return
    few, many = ran[0], ran[-1]
    what = f"BERT-Large, {few['layers']} to {many['layers']} layers: device memory"
    command = command_of(found, "l2l-depths")
    for way, words in (("ahead", f"{few['ahead_kernels']} kernels enqueued ahead"),
                       ("waiting", "a program that waits for each kernel")):
        speeds = [part(row, row[way]) for row in ran]
        slow = max(1 / each - 1 for each in speeds)
        yield Row("L2L", f"{what}, {words}", "constant",
                  f"{few['budget_bytes'] / 2**30:.2f} GiB throughout, at {min(speeds):.4f} to "
                  f"{max(speeds):.4f} of unlimited speed", few["words"], command,
                  "" if slow <= LONGER else f"up to {100 * slow:.1f} % longer: the driver's calls "
                  "that map memory delay the kernel behind them")
        least = [row for row in ran if "steady_s" in row.get("least_" + way, {})]
        if len(least) > 1:
            bytes_ = [row["least_" + way]["budget_bytes"] / 2**30 for row in least]
            yield Row("L2L", f"BERT-Large, {least[0]['layers']} to {least[-1]['layers']} layers, "
                      f"{words}: least memory for a step at most 1 % longer", "constant",
                      ", ".join(f"{each:.2f}" for each in bytes_) + " GiB", few["words"], command,
                      "" if max(bytes_) <= 1.25 * min(bytes_) else
                      "so much stays that fewer of the driver's calls are needed")


def l2l_hosts(found: dict[str, Any]) -> Iterator[Row]:
    """Its optimizer at the host, beside the same one on the device."""
    for row in (each for each in found.get("l2l_host", []) if "orders" in each):
        for at, budget in enumerate(next((order["budgets"] for order in row["orders"]
                                          if "budgets" in order), [])):
            words = [(order["order"], part(row, order["budgets"][at])) for order in row["orders"]
                     if "budgets" in order]
            ours = ", ".join(f"{value:.3f} ({name})" for name, value in words if value)
            batch = f", batch {row['batch']}" if row["batch"] else ""
            if ours:
                yield Row("L2L", f"{row['job']}{batch}, in {budget['budget_bytes'] / 2**30:.1f} "
                          "GiB: part of a plain loop's unlimited speed, by its optimizer",
                          "at the host, 1 G parameters/s", ours, row["words"],
                          command_of(found, "l2l-host", row["job"]))


def rows(results: pathlib.Path, roam: pathlib.Path) -> list[Row]:
    found = json.loads((results / "jobs.json").read_text(encoding="utf-8"))
    return [*teraio(found), *deepspeed(results.parent), *ssdtrain(found),
            *published_roam.rows(roam), *l2l(found)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench/results/jobs")
    parser.add_argument("--roam", type=pathlib.Path, default=ROOT / "bench/roam/RESULTS.md")
    parser.add_argument("--out", type=pathlib.Path, help="[RESULTS/published.html]")
    given = parser.parse_args()
    for path in (given.results / "jobs.json", given.roam):
        if not path.exists():
            parser.error(f"{path} is not there (bench/jobs/figures.py, bench/roam/figures.py)")
    out = given.out or given.results / "published.html"
    found = rows(given.results, given.roam)
    plot = given.results / "rok.png"
    out.write_text(html_pages.render(
        "published.html", rows=[dataclasses.asdict(each) for each in found],
        rok=html_pages.png_url(plot.read_bytes()) if plot.exists() else ""), encoding="utf-8")
    print(f"{out}: {len(found)} figures, {sum(not each.ours for each in found)} not measured")
    return 0


if __name__ == "__main__":
    sys.exit(main())
