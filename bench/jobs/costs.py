#!/usr/bin/env python3
"""Of the jobs in bench/results/jobs/jobs.json: for each machine and number of SSDs, tokens a
second, tokens for a dollar, and how long the SSDs last. Nothing is simulated here.

  costs.py [--results DIR] [--jobs NAME,...] [--price GPU=USD ...] [--ssd-price USD]
           [--ssd-endurance TB] [--years N] [--json]

A job runs in the largest of its budgets that the GPU's memory holds, in the faster of Firn's ways;
TERAIO's cases are there in all of the GPU's memory, and with SSDs alone. Of several shards one
GPU's part is reckoned.
An hour costs what the GPU rents for (--price) and the SSDs' wear and age: an SSD is paid off over
the time that its endurance lasts at the job's rate, and over --years at most. Prices are
assumptions: rents are about the middle of what was asked for on demand in 2026, and an SSD is one
of 7.68 TB of one full write a day for five years.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import sys
from typing import Any, Iterator

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
import gpus  # noqa: E402
import models  # noqa: E402

USD_AN_HOUR = {"h200": 3.75, "h100": 2.95, "h100-titan": 2.95, "a100": 1.5, "rtx4090": 0.5,
               "v100": 0.5}
SSD_USD, SSD_ENDURANCE_TB, YEARS = 1000.0, 14_000.0, 5.0
HOURS_A_YEAR = 8766.0
WAYS = ("lifetime", "remake", "both")     # charts.py says what these are


@dataclasses.dataclass(frozen=True)
class Prices:
    gpu_usd_hour: dict[str, float]
    ssd_usd: float = SSD_USD
    ssd_endurance_tb: float = SSD_ENDURANCE_TB
    years: float = YEARS


@dataclasses.dataclass(frozen=True)
class Cost:
    job: str
    machine: str
    ssds: int
    way: str
    budget_bytes: int
    part: float                # of the speed with unlimited memory
    samples_s: float           # tokens, or images
    usd_hour: float
    samples_usd: float
    ssd_years: float           # each SSD's endurance at this rate; infinite: nothing is written


def samples_of(result: dict[str, Any]) -> float:
    """Of a step, for each GPU."""
    of = models.JOBS[result["job"]]
    return result.get("batch", of.batch) * (result.get("length", of.length) or 1) / of.shards


def best_row(result: dict[str, Any]) -> tuple[dict[str, Any], str] | None:
    """The largest budget that the GPU holds, and the faster way there."""
    memory = gpus.MACHINES[result["machine"]].budget_bytes
    rows = result.get("budgets", [result])     # of TERAIO's cases there is one
    for row in sorted(rows, key=lambda each: -each["budget_bytes"]):
        ways = [each for each in WAYS if "steady_s" in row.get(each, {})]
        if row["budget_bytes"] <= memory and ways:
            return row, min(ways, key=lambda each: row[each]["steady_s"])
    return None


def ssd_life_years(bytes_written: float, seconds: float, ssds: int, prices: Prices) -> float:
    """`bytes_written` each `seconds`, shared alike."""
    if bytes_written <= 0:
        return math.inf
    bytes_hour = bytes_written / ssds / seconds * 3600
    return prices.ssd_endurance_tb * 1e12 / bytes_hour / HOURS_A_YEAR


def cost(result: dict[str, Any], prices: Prices) -> Cost | None:
    """None: the job ran on that machine in no budget that its GPU holds, or its GPU has no
    price."""
    found = best_row(result)
    gpu = gpus.MACHINES[result["machine"]].gpu.name
    if not found or gpu not in prices.gpu_usd_hour or result["job"] not in models.JOBS:
        return None
    row, way = found
    ran, ssds = row[way], result.get("ssds", gpus.MACHINES[result["machine"]].ssds)
    life = ssd_life_years(ran.get("bytes_written", 0), ran["steady_s"], ssds, prices)
    ssd_usd_hour = ssds * prices.ssd_usd / (min(life, prices.years) * HOURS_A_YEAR)
    usd_hour = prices.gpu_usd_hour[gpu] + ssd_usd_hour
    samples_s = samples_of(result) / ran["steady_s"]
    name = result["job"] + (f", {result['batch']} x {result['length']}" if "batch" in result
                            else "")
    return Cost(name, result["machine"], ssds, way, row["budget_bytes"],
                result["seconds"] / ran["steady_s"], samples_s, usd_hour,
                samples_s * 3600 / usd_hour, life)


def costs(found: dict[str, Any], jobs: list[str], prices: Prices) -> Iterator[Cost]:
    """Job by job, the cheapest first."""
    results = [each for each in (*found["jobs"], *found.get("teraio", []))
               if "error" not in each]
    for job in dict.fromkeys(each["job"] for each in results):
        if not jobs or job in jobs:
            of = (cost(each, prices) for each in results if each["job"] == job)
            yield from sorted(filter(None, of), key=lambda each: -each.samples_usd)


def price(words: str) -> tuple[str, float]:
    name, _, usd = words.partition("=")
    if name not in gpus.GPUS:
        raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(gpus.GPUS)}")
    return name, positive(usd)


def positive(words: str) -> float:
    try:
        value = float(words)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{words} is no positive number")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "bench/results/jobs")
    parser.add_argument("--jobs", help="[all]")
    parser.add_argument("--price", type=price, action="append", default=[], metavar="GPU=USD",
                        help="an hour of it; may be repeated "
                        f"[{', '.join(f'{name}={usd:g}' for name, usd in USD_AN_HOUR.items())}]")
    parser.add_argument("--ssd-price", type=positive, default=SSD_USD, metavar="USD",
                        help=f"[{SSD_USD:g}]")
    parser.add_argument("--ssd-endurance", type=positive, default=SSD_ENDURANCE_TB, metavar="TB",
                        help=f"bytes that one may be written [{SSD_ENDURANCE_TB:g}]")
    parser.add_argument("--years", type=positive, default=YEARS, help=f"[{YEARS:g}]")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    path = given.results / "jobs.json"
    if not path.exists():
        parser.error(f"{path} is not there (bench/jobs/figures.py makes it)")
    prices = Prices(USD_AN_HOUR | dict(given.price), given.ssd_price, given.ssd_endurance,
                    given.years)
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = list(costs(found, given.jobs.split(",") if given.jobs else [], prices))
    if given.json:
        print(json.dumps([dataclasses.asdict(each) | {
            "ssd_years": None if math.isinf(each.ssd_years) else each.ssd_years}
            for each in rows], indent=1))
        return 0
    print(f"{'job':<26}{'machine':<14}{'SSDs':>4}{'memory':>9}  {'way':<10}{'of ideal':>8}"
          f"{'a second':>12}{'USD/h':>8}{'M for 1 USD':>13}{'SSD years':>11}")
    for each in rows:
        years = "-" if math.isinf(each.ssd_years) else f"{each.ssd_years:.1f}"
        print(f"{each.job:<26}{each.machine:<14}{each.ssds:>4}"
              f"{each.budget_bytes / gpus.GIB:>5.0f} GiB  {each.way:<10}{each.part:>8.3f}"
              f"{each.samples_s:>12,.0f}{each.usd_hour:>8.2f}{each.samples_usd / 1e6:>13.1f}"
              f"{years:>11}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
