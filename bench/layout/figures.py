#!/usr/bin/env python3
"""What `firn layout` reaches, as a table; every layout is checked by check.py.

    bench/layout/figures.py [--firn BINARY] [--seeds N] [--public DIR] [--large] [--only TEXT]

--public: a folder of public instances; a file NAME.CAPACITY.csv is laid out for its capacity.
--large: those of 1,000,000 buffers too (minutes, checking included).
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import check
import instances

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Kind, buffers, deadline in seconds.
DRAWN = [(kind, 100_000, 1) for kind in ("uniform", "heavy", "scales", "long")]
DRAWN += [("guillotine", 100_000, 10), ("halves", 100_000, 10), ("guillotine", 1_000, 10)]
LARGE = [(kind, 1_000_000, 20) for kind in ("uniform", "heavy", "scales")]


def run(firn, instance, out, words):
    result = subprocess.run([firn, "layout", str(instance), "-o", str(out), "--json", *words],
                            capture_output=True, text=True, check=False)
    if result.returncode not in (0, 1):
        sys.exit(f"{instance}: {result.stderr}")
    found = json.loads(result.stdout)
    height, load = check.check_files(instance, out)
    if (height, load) != (found["height"], found["load"]):
        sys.exit(f"{instance}: {found} is not what was written: height {height}, load {load}")
    return found, result.returncode == 0


def line(name, runs):
    seconds = [found["seconds"] for found, _ in runs]
    reached = sum(ok for _, ok in runs)
    ratios = [found["height"] / found["load"] for found, _ in runs]
    print(f"| {name} | {runs[0][0]['buffers']} | {reached}/{len(runs)} | {max(ratios):.6f} | "
          f"{statistics.median(seconds):.3f} | {max(seconds):.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--firn", default=str(ROOT / ".venv" / "bin" / "firn"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--threads", default="2")
    parser.add_argument("--public", type=pathlib.Path)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    print("| instance | buffers | reached | worst height / load | median s | worst s |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.csv"
        for path in sorted(given.public.glob("*.csv")) if given.public else []:
            if given.only not in path.name:
                continue
            words = ["--threads", given.threads, "--deadline", "3s"]
            capacity = path.stem.split(".")[-1]
            if capacity.isdigit():
                words += ["--capacity", capacity]
            line(path.stem, [run(given.firn, path, out, [*words, "--seed", str(seed)])
                             for seed in range(given.seeds)])
        for kind, buffers, seconds in DRAWN + (LARGE if given.large else []):
            name = f"{kind}-{buffers}"
            if given.only not in name:
                continue
            path = pathlib.Path(folder) / f"{name}.csv"
            with open(path, "w") as file:
                instances.write(file, kind, buffers, 1)
            line(f"{name} in {seconds} s", [run(given.firn, path, out, [
                "--threads", given.threads, "--deadline", f"{seconds * 0.97:.2f}s"])])
            path.unlink()


if __name__ == "__main__":
    main()
