#!/usr/bin/env python3
"""Memory that allocators reserve for ROAM's steps, beside ROAM's PyTorch column, which is reserved
memory too: reserved.py [--only WORD] [--keep DIR] [--build BUILD]

Three programs a step. graph: the captured step (capture.py) in program order, each storage freed
after its last use. firn order: the same in the order of `firn order`. eager: the ordinary job with
torch.optim.Adam (eager.py). Three times each, their allocations go through PyTorch's own caching
allocator, the same with expandable segments, and Firn (replay.py), on the software GPU and without
kernels: what kernels take for themselves is missing everywhere. MiB; "least": the least budget with
which Firn allocates everything with nothing moved; "height": of `firn order`'s layout.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import figures  # noqa: E402

sys.path.insert(0, str(HERE.parent / "jobs"))
import published_roam  # noqa: E402

STEPS = 3
GPU_MEMORY = 256 << 30     # addresses: nothing is ever written
MIB = 1 << 20
BACKENDS = {"native": "", "expandable": "expandable_segments:True", "firn": "backend:firn"}


def events_of(graph, order):
    """Storages as the order makes and frees them, in each of STEPS steps."""
    lives = graph.lives(order)
    always = [(storage, graph.storages[storage][0]) for storage in graph.storages
              if graph.storages[storage][1] in figures.check.THROUGHOUT]
    begins, ends = {}, {}
    for storage, (begin, end) in lives.items():
        size, kind = graph.storages[storage]
        if size and kind not in figures.check.THROUGHOUT:
            begins.setdefault(begin, []).append((storage, size))
            ends.setdefault(end, []).append(storage)
    events = [[storage, size] for storage, size in always if size]
    for _ in range(STEPS):
        for at in range(len(order)):
            events += [[storage, size] for storage, size in begins.get(at, ())]
            events += [[storage, 0] for storage in ends.get(at, ())]
        events.append("step")
    return events


def alive(events):
    sizes, total, most = {}, 0, 0
    for event in events:
        if isinstance(event, str):  # where a step, or a graph, ends
            continue
        storage, size = event
        total += size if size else -sizes.pop(storage)
        if size:
            sizes[storage] = size
        most = max(most, total)
    return most


def environment(build, conf):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("FIRN_", "PYTORCH_", "CUDA_")) and name != "PYTHONPATH"}
    software = build / "backing" / "gpu" / "software"
    return {**kept, "FIRN_BUILD": str(build), "PYTHONPATH": str(build / "site"),
            "FIRN_DEVICE": "software", "FIRN_GPU_MEMORY": str(GPU_MEMORY),
            "PYTORCH_CUDA_ALLOC_CONF": conf, "TRITON_LIBCUDA_PATH": str(software),
            "LD_PRELOAD": f"{software / 'cudart' / 'libcudart.so.13'}:"
                          f"{software / 'libcuda.so.1'}"}


def run(build, conf, *words):
    done = subprocess.run([sys.executable, *map(str, words)], env=environment(build, conf),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"reserved.py: {words}: {done.stderr[-2000:]}")
    return done.stdout


def programs(name, batch, folder, firn, build):
    """Files of events by program, the height of the plan, and the bytes alive at most."""
    prefix = figures.captured(name, batch, False, folder)
    found, order = figures.planned(firn, prefix)
    graph = figures.check.Graph(prefix)
    files = {"graph": pathlib.Path(f"{prefix}.graph.json"),
             "firn order": pathlib.Path(f"{prefix}.ordered.json"),
             "eager": pathlib.Path(f"{prefix}.eager.json")}
    for kind, each in (("graph", graph.program), ("firn order", order)):
        files[kind].write_text(json.dumps(events_of(graph, each)))
    scaled = [] if (name, batch, False) in figures.MATHS else ["--scaled-attention"]
    run(build, "", HERE / "eager.py", name, batch, "adam", files["eager"], *scaled)
    return files, {"graph": "", "firn order": found["height"], "eager": ""}


def lines(name, batch, folder, firn, build):
    files, heights = programs(name, batch, folder, firn, build)
    replayed = {backend: [json.loads(line) for line in run(
        build, conf, HERE / "replay.py", *files.values()).splitlines()]
        for backend, conf in BACKENDS.items()}
    of = published_roam.PUBLISHED.get(name)
    theirs = of[0][(1, 32).index(batch)] if of else ""
    for at, kind in enumerate(files):
        native, expandable, ours = (replayed[backend][at] for backend in BACKENDS)
        cells = [alive(json.loads(files[kind].read_text())), native["allocated"],
                 native["reserved"], expandable["reserved"], ours["least"], heights[kind]]
        yield [f"{name} {batch}", kind,
               *(f"{each / MIB:.1f}" if each else "" for each in cells),
               theirs if kind == "graph" else ""]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="steps that have this in their name")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the graphs, used again")
    parser.add_argument("--build", type=pathlib.Path, default=figures.ROOT / "build")
    given = parser.parse_args()
    build = given.build.resolve()
    print("| step | program | alive | allocated | native reserved | expandable reserved | "
          "firn least | height | ROAM's PyTorch |")
    print("|---|" + "---|" * 8)
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name, batch, persistent, _, _ in figures.rows(given.only):
            if not persistent:
                for cells in lines(name, batch, folder, build / "allocator/command/firn", build):
                    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
