"""Instances of `firn layout` from a seed: instances.py KIND BUFFERS SEED > FILE.csv.

Kinds: uniform (lifetimes of any length up to a hundredth of all time), heavy (lifetimes too are
heavy-tailed), scales (lifetimes of every order of magnitude), long (both ends anywhere): sizes are
heavy-tailed; guillotine: a rectangle cut in two again and again, anywhere, in a random direction, a
random piece each time; halves: the largest piece each time. The rectangle's height is the load, and
the optimum.
"""

import heapq
import math
import random
import sys

SIDE = 1 << 30


def lifetimes(kind, buffers, draw):
    time = 10 * buffers
    for _ in range(buffers):
        size = min(int(256 * draw.paretovariate(1.2)), SIDE)
        lower = draw.randrange(time)
        if kind == "uniform":
            length = 1 + draw.randrange(buffers // 10 + 1)
        elif kind == "heavy":
            length = 1 + min(time, int(10 * draw.paretovariate(0.8)))
        elif kind == "scales":
            length = 1 + int(math.exp(draw.random() * math.log(buffers)))
        else:
            other = draw.randrange(time)
            lower, length = min(lower, other), abs(other - lower) + 1
        yield lower, lower + length, size


def dissection(kind, buffers, draw):
    """Pieces [(lower, upper, size)] of a rectangle of SIDE by SIDE."""
    pieces = [(-SIDE * SIDE, 0, (0, SIDE, SIDE))]  # with the order of a heap
    while len(pieces) < buffers:
        if kind == "guillotine":
            at = draw.randrange(len(pieces))
            pieces[at], pieces[-1] = pieces[-1], pieces[at]
            _, _, (lower, upper, size) = pieces.pop()
        else:
            _, _, (lower, upper, size) = heapq.heappop(pieces)
        along_time = draw.random() < 0.5
        if (upper - lower if along_time else size) < 2:
            along_time = not along_time
        if along_time and upper - lower >= 2:
            cut = lower + 1 + draw.randrange(upper - lower - 1)
            parts = [(lower, cut, size), (cut, upper, size)]
        elif not along_time and size >= 2:
            cut = 1 + draw.randrange(size - 1)
            parts = [(lower, upper, cut), (lower, upper, size - cut)]
        else:
            continue  # a single point: it is left out
        for part in parts:
            entry = (-(part[1] - part[0]) * part[2], draw.random(), part)
            if kind == "guillotine":
                pieces.append(entry)
            else:
                heapq.heappush(pieces, entry)
    rows = [piece for _, _, piece in pieces]
    draw.shuffle(rows)
    return rows


KINDS = ("uniform", "heavy", "scales", "long", "guillotine", "halves")


def write(file, kind, buffers, seed):
    draw = random.Random(seed)
    rows = (dissection if kind in ("guillotine", "halves") else lifetimes)(kind, buffers, draw)
    file.write("id,lower,upper,size\n")
    file.writelines(f"{index},{lower},{upper},{size}\n"
                    for index, (lower, upper, size) in enumerate(rows))


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in KINDS:
        sys.exit(__doc__)
    write(sys.stdout, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
