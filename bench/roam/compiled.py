#!/usr/bin/env python3
"""What planned addresses would save in torch.compile's graphs: compiled.py [--only WORD]
[--batches 1,32] [--keep DIR] [--build BUILD]

Of each of ROAM's models the forward and the backward graph as Inductor lowers them
(inductor_program.py), in Inductor's order, no optimizer, three steps, through PyTorch's allocator
and Firn as reserved.py does it. Three programs: as it is by default; with Inductor's own memory
planning forced, which it leaves out in training; with one pool a graph in which all that is made
and freed within the graph has the addresses of `firn layout`. (That is more than could be done:
Inductor lets convolutions and others make their own results.) MiB. "bound": the most that any plan
of addresses could save beside Firn's least, in %: no layout is lower than what is alive.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import figures  # noqa: E402
import reserved  # noqa: E402

ALIGNMENT = 512
MIB = reserved.MIB
MARKS = ("step", "backward", "done")
# (program, allocator) of each column.
COLUMNS = (("plain", "native"), ("plain", "expandable"), ("planning", "native"),
           ("pools", "native"), ("plain", "firn"), ("planning", "firn"), ("pools", "firn"))


def segments(events):
    """[begin, end) of each graph's run; what is never freed was there before the first."""
    freed = {event[0] for event in events if event not in MARKS and not event[1]}
    begin = next(at for at, event in enumerate(events) if event[0] in freed)
    while begin < len(events):
        middle = events.index("backward", begin)
        end = events.index("done", middle)
        yield begin, middle
        yield middle + 1, end
        begin = events.index("step", end) + 1


def laid_out(firn, lives, folder):
    """The height of a layout of (begin, end, bytes)."""
    source = folder / "buffers.csv"
    with open(source, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("id", "lower", "upper", "size"))
        rows.writerows((at, *each) for at, each in enumerate(lives))
    done = subprocess.run([str(firn), "layout", str(source), "--json"], check=True,
                          capture_output=True, text=True)
    return json.loads(done.stdout)["height"]


def pooled(firn, events, folder):
    """The same with one pool for what each graph makes and frees."""
    found, heights = list(events), {}
    for number, (begin, end) in enumerate(segments(events)):
        lives, made = [], {}
        for at in range(begin, end):
            storage, size = events[at]
            if size:
                made[storage] = (at, size)
            elif storage in made:
                first, size = made.pop(storage)
                lives.append((first, at, -(-size // ALIGNMENT) * ALIGNMENT))
                found[first] = found[at] = None
        if not lives:
            continue
        key = tuple((first - begin, last - begin, size) for first, last, size in lives)
        if key not in heights:
            heights[key] = laid_out(firn, key, folder)
        pool = f"pool {number}"
        found[begin] = [[pool, heights[key]], found[begin]]
        found[end] = [[pool, 0], found[end]]
    return [event for each in found if each is not None
            for event in (each if isinstance(each, list) and isinstance(each[0], list) else [each])
            if event is not None]


def programs(name, batch, folder, build):
    scaled = [] if (name, batch, False) in figures.MATHS else ["--scaled-attention"]
    files = {kind: folder / f"compiled-{name}-{batch}.{kind}.json"
             for kind in ("plain", "planning", "pools")}
    if not files["planning"].exists():
        reserved.run(build, "", HERE / "inductor_program.py", name, batch, files["plain"],
                     files["planning"], *scaled)
    events = json.loads(files["plain"].read_text())
    files["pools"].write_text(json.dumps(pooled(build / "allocator/command/firn", events, folder)))
    return files


def line(name, batch, folder, build):
    files = programs(name, batch, folder, build)
    found = {}
    for backend, conf in reserved.BACKENDS.items():
        output = reserved.run(build, conf, HERE / "replay.py", *files.values())
        for kind, text in zip(files, output.splitlines()):
            of = json.loads(text)
            found[kind, backend] = of["least" if backend == "firn" else "reserved"]
    alive = reserved.alive(json.loads(files["plain"].read_text()))
    least = found["plain", "firn"]
    return [f"{name} {batch}", f"{alive / MIB:.1f}",
            *(f"{found[each] / MIB:.1f}" for each in COLUMNS),
            f"{100 * (1 - alive / least):.2f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="steps that have this in their name")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the programs, used again")
    parser.add_argument("--build", type=pathlib.Path, default=figures.ROOT / "build")
    given = parser.parse_args()
    head = ["step", "alive", *(", ".join(each) for each in COLUMNS), "bound, %"]
    print("| " + " | ".join(head) + " |")
    print("|---|" + "---|" * (len(head) - 1))
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for batch in map(int, given.batches.split(",")):
            for name in figures.ROAM:
                if name != "gpt2_xl" and given.only in f"{name} {batch}":
                    cells = line(name, batch, folder, given.build.resolve())
                    print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
