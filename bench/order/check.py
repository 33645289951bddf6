#!/usr/bin/env python3
"""Checks an order and its layout by itself, sharing nothing with the solver:
check.py PREFIX OUT reads PREFIX.ops.csv, PREFIX.storages.csv, OUT.order.csv and OUT.layout.csv.

Prints the peak in program order, the peak and the height, in bytes; the status is 1 where an
operator runs before one that it needs, or two storages that are alive at once overlap.
"""

import csv
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "layout"))
import check as layout_check  # noqa: E402

THROUGHOUT = ("param", "buffer", "m", "v", "const")


class Wrong(Exception):
    """Why it is no order, or no layout."""


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class Graph:
    """What the two files say."""

    def __init__(self, prefix):
        self.storages = {row["storage"]: (int(row["bytes"]), row["kind"])
                         for row in rows_of(f"{prefix}.storages.csv")}
        self.reads, self.writes = {}, {}
        for row in rows_of(f"{prefix}.ops.csv"):
            self.reads[row["op"]] = set(row["inputs"].split())
            self.writes[row["op"]] = set((row["outputs"] + " " + row["mutates"]).split())
        self.program = list(self.reads)

    def named(self, op):
        return self.reads[op] | self.writes[op]

    def events(self, order):
        """Of each storage: what happens to it, as (version written before, writes it)."""
        versions, seen = {}, {}
        for op in order:
            for storage in self.named(op):
                wrote = storage in self.writes[op]
                seen[op, storage] = (versions.get(storage, 0), wrote)
                versions[storage] = versions.get(storage, 0) + wrote
        return seen

    def check_order(self, order):
        if sorted(order) != sorted(self.program):
            raise Wrong("not every operator once")
        # Each reads what it reads in program order, and the writes come in their order. A write
        # after a read: the reader would see another version.
        expected, found = self.events(self.program), self.events(order)
        for (op, storage), what in expected.items():
            if found[op, storage] != what:
                raise Wrong(f"operator {op}: storage {storage} is at version "
                            f"{found[op, storage][0]}, not {what[0]}")

    def lives(self, order):
        """Of each storage: [first, last] position at which it is alive; None where it never is."""
        last, first = {}, {}
        for position, op in enumerate(order):
            for storage in self.named(op):
                first.setdefault(storage, position)
                last[storage] = position
        lives = {}
        for storage, (_, kind) in self.storages.items():
            if kind in THROUGHOUT or (kind == "batch" and storage not in last):
                lives[storage] = (0, len(order) - 1)
            elif kind == "batch":
                lives[storage] = (0, last[storage])
            elif storage in first:
                lives[storage] = (first[storage], last[storage])
        return lives

    def profile(self, order):
        """Bytes alive at each position."""
        change = [0] * (len(order) + 1)
        for storage, (begin, end) in self.lives(order).items():
            change[begin] += self.storages[storage][0]
            change[end + 1] -= self.storages[storage][0]
        alive, total = [], 0
        for each in change[:-1]:
            total += each
            alive.append(total)
        return alive

    def check_layout(self, order, offsets):
        if sorted(offsets) != sorted(self.storages):
            raise Wrong("not every storage once")
        buffers = [(begin, end + 1, self.storages[storage][0], offsets[storage])
                   for storage, (begin, end) in self.lives(order).items()
                   if self.storages[storage][0] > 0]
        try:
            return layout_check.check_rows(buffers)[0]
        except layout_check.Wrong as wrong:
            raise Wrong(f"layout: {wrong}") from None


def check(prefix, out):
    """Peak in program order, peak, height; raises Wrong."""
    graph = Graph(prefix)
    order = [row["op"] for row in rows_of(f"{out}.order.csv")]
    graph.check_order(order)
    offsets = {row["storage"]: int(row["offset"]) for row in rows_of(f"{out}.layout.csv")}
    height = graph.check_layout(order, offsets)
    return max(graph.profile(graph.program)), max(graph.profile(order)), height


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        print(*check(sys.argv[1], sys.argv[2]))
    except Wrong as wrong:
        sys.exit(f"check.py: {wrong}")


if __name__ == "__main__":
    main()
