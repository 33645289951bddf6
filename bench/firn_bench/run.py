"""Runs the suite's benches and writes their results; see bench/run.sh."""

from __future__ import annotations

import argparse
import datetime
import os
import pathlib
import sys
import time

from firn_bench import compare, machine, page, steps
from firn_bench import figures as results_of
from firn_bench.context import Context, LeftOut, scratch

ROOT = pathlib.Path(__file__).resolve().parents[2]


def writable(folder: pathlib.Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def show(figure: results_of.Figure) -> str:
    line = f"  {figure.name:48} {figure.firn:12.4g} {figure.unit:12}"
    return line + "".join(f"  {figure.ratio(peer):.3g} of {peer}" for peer in figure.peers)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/run.sh", description="Firn's benches, beside "
                                     "what people use now. Without a name: all of them.")
    parser.add_argument("names", nargs="*", metavar="NAME",
                        help="quick (fewer and shorter), or benches: " + ", ".join(steps.STEPS))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results")
    parser.add_argument("--scratch", type=pathlib.Path, default=ROOT / "build",
                        help="where files are written and read: the file system that is measured")
    parser.add_argument("--list", action="store_true", help="the benches, and no more")
    given = parser.parse_args()
    if given.list:
        for name, step in steps.STEPS.items():
            print(f"{name:10} {(step.__doc__ or '').splitlines()[0]}")
        return 0
    quick = "quick" in given.names
    names = [each for each in given.names if each != "quick"] or list(steps.STEPS)
    wrong = [each for each in names if each not in steps.STEPS]
    if wrong:
        parser.error(f"no such bench: {', '.join(wrong)} (there are: {', '.join(steps.STEPS)})")
    if not writable(given.out):
        parser.error(f"{given.out} cannot be written (--out names another folder)")
    if not writable(given.scratch):
        parser.error(f"{given.scratch} cannot be written (--scratch names another folder)")

    here = machine.describe()
    date = datetime.date.today().isoformat()
    # What ran in part does not replace what ran as a whole on that day.
    file = given.out / "-".join((machine.kind(here), date, *given.names))
    file = file.with_name(file.name + ".json")
    results = {"machine": here, "kind": machine.kind(here), "date": date, "quick": quick,
               "command": "bench/run.sh " + " ".join(given.names), "seconds": {}, "left_out": []}
    before = compare.latest(given.out, results, names, file)
    found: list[results_of.Figure] = []
    try:
        for name in names:
            print(f"{name}: {(steps.STEPS[name].__doc__ or '').splitlines()[0]}", flush=True)
            begin = time.monotonic()
            with scratch(given.scratch.resolve()) as folder:
                context = Context(quick, pathlib.Path(folder))
                try:
                    made = steps.STEPS[name](context)
                except LeftOut as reason:
                    made = []
                    context.left_out.append(f"{name}: {reason}")
            found += made
            results["left_out"] += context.left_out
            results["seconds"][name] = round(time.monotonic() - begin, 1)
            for figure in made:
                print(show(figure))
            for reason in context.left_out:
                print(f"  left out: {reason}")
            results_of.write_whole(file, results_of.as_json(results, found))
    except KeyboardInterrupt:  # also between two of them
        rest = [each for each in names if each not in results["seconds"]]
        if rest:
            results["left_out"].append(f"{rest[0]} and what comes after it: interrupted")
        print("interrupted: what is done is kept")
    results_of.write_whole(file, results_of.as_json(results, found))
    images = page.plots(found)
    for name, image in images.items():
        results_of.write_whole(file.with_name(f"{file.stem}-{name}.png"), image)
    results_of.write_whole(file.with_suffix(".html"), page.render(results, found, images))
    print(f"{file}\n{file.with_suffix('.html')}")
    if before:
        for line in compare.lost(*before, results, found):
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
