"""The store beside fio, DeepSpeed's DeepNVMe and plain pread and pwrite, on the file system of the
scratch folder; and its sums beside the hash's library alone."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import sys

from firn_bench import peers
from firn_bench.context import BUILD, ROOT, Context, LeftOut
from firn_bench.figures import Figure, median_of

# Each pair of sizes (MiB) and depths; the first are what `quick` does.
QUICK = [(1, 16), (8, 4)]
CASES = [(1, 1), (1, 4), *QUICK, (1, 64), (2, 16), (4, 16), (8, 16), (16, 4), (16, 16), (32, 1),
         (32, 4), (32, 16), (32, 64)]
IN_FLIGHT_MOST_MIB = 2048
PASSES = {"overwrite": "write", "read": "read", "mixed": "mixed"}
FIO = {"fio io_uring": "io_uring", "fio libaio": "libaio", "plain pread and pwrite": "psync"}
OURS = ("io_uring", "threads")


def checksum(context: Context) -> list[Figure]:
    """The store's sums beside the hash's library alone: where bytes are, and on fresh copies."""
    found = context.google(BUILD / "bench/store/sum_bench")
    figures = []
    for name, times in found.items():
        what, size = re.fullmatch(r"(\w+)/bytes:(\d+)", name).groups()
        if not what.endswith("_store"):
            continue
        beside = found[name.replace("_store", "_library")]
        source = {"memory": "in place", "copy": "on a copy, its making included"}[what[:-6]]
        figures.append(median_of(
            "checksum", f"{source}, {int(size) >> 20} MiB", "GB/s",
            [each["bytes_per_second"] / 1e9 for each in times], better="higher",
            peers={"XXH3-128 of the library": statistics.median(
                each["bytes_per_second"] / 1e9 for each in beside)},
            curve=f"{source}: GB/s", x=int(size)))
    return figures


def _sum_cost(context: Context) -> float:
    """Milliseconds of a processor that sums take for each GB: the store's own, which are sooner."""
    piece = 1 << 20
    times = context.google(BUILD / "bench/store/sum_bench",
                           f"--benchmark_filter=memory_store/bytes:{piece}")
    return statistics.median(each["cpu_time"] for repetitions in times.values()
                             for each in repetitions) / piece * 1e3


def _fio(context: Context, engine: str, what: str, mib: int, depth: int,
         total_mib: int) -> tuple[float, float]:
    """MB/s, and milliseconds of a processor for each GB."""
    said = context.run(
        ["fio", "--name=firn", f"--directory={context.folder}", "--filename=fio.data",
         f"--ioengine={engine}", f"--rw={'rw' if what == 'mixed' else what}", f"--bs={mib}m",
         f"--iodepth={depth}", f"--size={total_mib}m", "--direct=1", "--overwrite=1",
         "--output-format=json", "--end_fsync=0", "--numjobs=1",
         *(("--fixedbufs=1", "--registerfiles=1") if engine == "io_uring" else ())], 300)
    job = json.loads(said[said.index("{"):])["jobs"][0]
    sides = [job[side] for side in ("read", "write") if job[side]["io_bytes"]]
    moved = sum(side["io_bytes"] for side in sides)
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"]   # ms
    return sum(side["bw_bytes"] for side in sides) / 1e6, cpu / (moved / 1e9)


class _Measured:
    """By who and which pass: MB/s and ms/GB, a round each."""

    def __init__(self) -> None:
        self.speeds: dict[tuple[str, str], list[float]] = {}
        self.costs: dict[tuple[str, str], list[float]] = {}

    def add(self, who: str, what: str, speed: float, cost: float) -> None:
        self.speeds.setdefault((who, what), []).append(speed)
        self.costs.setdefault((who, what), []).append(cost)


def _round(context: Context, measured: _Measured, others: dict, mib: int, depth: int,
           total: int) -> None:
    said = context.run([BUILD / "bench/store/store_bench", context.folder, mib, depth, total], 600)
    for line in said.splitlines():
        found = re.match(r"(io_uring|threads)\s+(overwrite|read|mixed)\s+(\d+) MB/s\s+([\d.]+)",
                         line)
        if found:
            measured.add(found.group(1), PASSES[found.group(2)], float(found.group(3)),
                         float(found.group(4)))
    for peer, measure in list(others.items()):
        try:
            for what, speed, cost in measure(mib, depth, total):
                measured.add(peer, what, speed, cost)
        except LeftOut as reason:
            context.left_out.append(f"store, {peer}, {mib} MiB x {depth}: {reason}")


def _others(context: Context) -> dict:
    """Those that can be had: name -> function of (MiB, depth, total MiB) that gives passes."""
    def of_fio(engine):
        return lambda mib, depth, total: [
            (what, *_fio(context, engine, what, mib, depth, total)) for what in PASSES.values()]

    def of_deepnvme(environment):
        def measure(mib, depth, total):
            file = context.folder / "deepnvme.data"
            said = context.run([sys.executable, ROOT / "bench/store/deepnvme.py", file, mib, depth,
                                total], 600, **environment)
            return [(what, float(speed), float(cost)) for what, speed, cost in
                    (line.split() for line in said.splitlines())]
        return measure

    others = {}
    if shutil.which("fio"):
        others.update({name: of_fio(engine) for name, engine in FIO.items()})
    else:
        context.left_out.append("store: no fio on this machine: not beside fio, pread and pwrite")
    try:
        others["DeepNVMe"] = of_deepnvme(peers.deepnvme(context))
    except LeftOut as reason:
        context.left_out.append(f"store, DeepNVMe: {reason}")
    return others


def store(context: Context) -> list[Figure]:
    """The store beside fio, DeepNVMe and plain calls: sizes, depths, reads, writes and both."""
    total = 512 if context.quick else 1024
    others = _others(context)
    # fio's file, DeepNVMe's, and the store's own.
    needed, free = 4 * IN_FLIGHT_MOST_MIB << 20, shutil.disk_usage(context.folder).free
    if free < needed:
        raise LeftOut(f"{context.folder} has {free >> 20} MiB left, {needed >> 20} are needed "
                      "(--scratch names another folder)")
    try:
        sum_cost = _sum_cost(context)
    except LeftOut as reason:
        context.left_out.append(f"store, what fio would take with sums: {reason}")
        sum_cost = None
    figures = []
    for mib, depth in QUICK if context.quick else CASES:
        measured = _Measured()
        for _ in range(2 if context.quick else 3):
            _round(context, measured, others, mib, depth, max(total, mib * depth))
        for what in PASSES.values():
            figures += _figures(measured, others, sum_cost, what, mib, depth)
    return figures


def _figures(measured: _Measured, others, sum_cost, what: str, mib: int,
             depth: int) -> list[Figure]:
    kind = next((each for each in OURS if (each, what) in measured.speeds), None)
    if kind is None:
        return []
    name, where = f"{what} {mib} MiB x {depth}", {}
    if depth == 16:
        where = {"curve": f"{what}, depth 16, against MiB: MB/s", "x": mib}
    elif mib == 1:
        where = {"curve": f"{what}, 1 MiB, against depth: MB/s", "x": depth}

    def medians(of):
        return {peer: statistics.median(of[peer, what]) for peer in others if (peer, what) in of}
    speeds, costs = medians(measured.speeds), medians(measured.costs)
    if kind == "io_uring" and ("threads", what) in measured.speeds:
        speeds["the store with threads"] = statistics.median(measured.speeds["threads", what])
    if sum_cost is not None:
        costs.update({f"{peer}, with sums": costs[peer] + sum_cost for peer in FIO
                      if peer in costs})
    return [median_of("store", name, "MB/s", measured.speeds[kind, what], better="higher",
                      peers=speeds, **where),
            median_of("store", name + ", processor", "ms/GB", measured.costs[kind, what],
                      peers=costs)]
