#!/usr/bin/env python3
"""Checks a layout by itself, sharing nothing with the solver: check.py INSTANCE.csv LAYOUT.csv.

LAYOUT.csv must hold INSTANCE.csv's rows in their order, with the column `offset` behind. Prints the
height; the status is 1 where two buffers that live at once overlap.
"""

import bisect
import csv
import sys


class Wrong(Exception):
    """Why it is no layout."""


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def check_rows(buffers):
    """Height and load of [(lower, upper, size, offset)]; raises Wrong where two overlap.

    In order of time, what is alive is kept sorted by address: who comes may reach neither into the
    one below nor into the one above."""
    edges = sorted([(upper, 0, index) for index, (_, upper, _, _) in enumerate(buffers)] +
                   [(lower, 1, index) for index, (lower, _, _, _) in enumerate(buffers)])
    alive = []  # (offset, end, index)
    bytes_alive = load = 0
    for _, begins, index in edges:
        _, _, size, offset = buffers[index]
        if offset < 0:
            raise Wrong(f"row {index + 1}: offset {offset}")
        entry = (offset, offset + size, index)
        at = bisect.bisect_left(alive, entry)
        if not begins:
            assert alive[at] == entry
            del alive[at]
            bytes_alive -= size
            continue
        if at > 0 and alive[at - 1][1] > offset:
            raise Wrong(f"rows {alive[at - 1][2] + 1} and {index + 1} overlap")
        if at < len(alive) and alive[at][0] < offset + size:
            raise Wrong(f"rows {alive[at][2] + 1} and {index + 1} overlap")
        alive.insert(at, entry)
        bytes_alive += size
        load = max(load, bytes_alive)
    return max(size + offset for _, _, size, offset in buffers), load


def check_files(instance, layout):
    """The same of two files."""
    given, found = rows_of(instance), rows_of(layout)
    if len(given) != len(found):
        raise Wrong(f"{len(given)} rows, {len(found)} in the layout")
    for index, (row, placed) in enumerate(zip(given, found)):
        if {**row, "offset": placed["offset"]} != placed:
            raise Wrong(f"row {index + 1} is another one: {row}, {placed}")
    return check_rows([tuple(int(row[name]) for name in ("lower", "upper", "size", "offset"))
                       for row in found])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        print(check_files(sys.argv[1], sys.argv[2])[0])
    except Wrong as wrong:
        sys.exit(f"{sys.argv[2]}: {wrong}")
