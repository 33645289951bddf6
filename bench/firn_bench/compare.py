"""Two results of bench/run.sh side by side: compare A.json B.json. A figure that lost more than a
tenth is marked; where the machines are not of one kind that is said first."""

from __future__ import annotations

import argparse
import pathlib
import sys

from firn_bench import figures as results_of

LOST = 0.1


def change(a: results_of.Figure, b: results_of.Figure) -> float:
    """How much better b is: .25 is a quarter faster; below zero it lost."""
    if not a.firn or not b.firn:
        return 0.0
    return a.firn / b.firn - 1 if b.better == "lower" else b.firn / a.firn - 1


def pairs(a, b):
    before = {(each.bench, each.name): each for each in a}
    return [(before[each.bench, each.name], each) for each in b
            if (each.bench, each.name) in before]


def lost(results_a, a, results_b, b):
    """Lines of what lost more than a tenth."""
    if results_a["quick"] != results_b["quick"]:
        return []
    return [f"{new.bench}, {new.name}: {new.firn:.4g} {new.unit}, {old.firn:.4g} on "
            f"{results_a['date']}: lost {-change(old, new):.0%}"
            for old, new in pairs(a, b) if change(old, new) < -LOST]


def latest(folder: pathlib.Path, results, names, but: pathlib.Path):
    """The newest results of that kind of machine there which tell of a bench in `names`, as quick or
    as long as these."""
    found = []
    for file in folder.glob(f"{results['kind']}-*.json"):
        if file == but:
            continue
        try:
            older, of = results_of.read(file)
        except ValueError:
            continue
        if older["quick"] == results["quick"] and any(each.bench in names for each in of):
            found.append((older["date"], file.name, (older, of)))
    return max(found, key=lambda each: each[:2])[2] if found else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/compare", description=__doc__)
    parser.add_argument("a", type=pathlib.Path, metavar="A.json")
    parser.add_argument("b", type=pathlib.Path, metavar="B.json")
    given = parser.parse_args()
    try:
        (results_a, a), (results_b, b) = results_of.read(given.a), results_of.read(given.b)
    except ValueError as error:
        parser.error(str(error))
    if results_a["kind"] != results_b["kind"]:
        print(f"machines of two kinds: {results_a['kind']}, {results_b['kind']}")
    if results_a["quick"] != results_b["quick"]:
        print("one was quick, the other was not")
    for old, new in pairs(a, b):
        better = change(old, new)
        mark = "  <- lost" if better < -LOST else ""
        print(f"{new.bench + ', ' + new.name:60} {old.firn:12.4g} {new.firn:12.4g} "
              f"{new.unit:12} {better:+.1%}{mark}")
    for name, only in ((given.a, set((f.bench, f.name) for f in a) -
                        set((f.bench, f.name) for f in b)),
                       (given.b, set((f.bench, f.name) for f in b) -
                        set((f.bench, f.name) for f in a))):
        if only:
            print(f"only in {name}: {len(only)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
