"""The benches: each runs programs of this repository and peers beside them, in turn, and gives
figures. A bench that cannot run says why and the suite goes on."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from typing import Callable

from firn_bench.figures import Figure, median_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
SOFTWARE = BUILD / "backing/gpu/software/libcuda.so.1"


class LeftOut(Exception):
    """Why a bench, or a part of it, did not run."""


@dataclasses.dataclass
class Context:
    quick: bool
    folder: pathlib.Path               # scratch, on the file system that is measured
    left_out: list[str] = dataclasses.field(default_factory=list)

    def run(self, words, seconds: float, **environment: str) -> str:
        words = [str(each) for each in words]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=seconds,
                                  env={**os.environ, **environment})
        except subprocess.TimeoutExpired:
            raise LeftOut(f"{pathlib.Path(words[0]).name} took more than {seconds:.0f} s") from None
        except OSError as error:
            raise LeftOut(f"{words[0]}: {error.strerror}") from None
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
            raise LeftOut(f"{' '.join(words[:3])}: status {done.returncode}: {said}")
        return done.stdout


def engine(context: Context) -> list[Figure]:
    """The engine's hot paths: allocate and free, touch and release (Google Benchmark)."""
    repetitions = 3 if context.quick else 9
    said = context.run([BUILD / "bench/engine/engine_bench", "--benchmark_format=json",
                        f"--benchmark_repetitions={repetitions}",
                        f"--benchmark_min_time={0.02 if context.quick else 0.2}"],
                       900, FIRN_TEST_GPU=str(SOFTWARE))
    times: dict[str, list[float]] = {}
    for each in json.loads(said)["benchmarks"]:
        if each["run_type"] == "iteration":
            times.setdefault(each["run_name"], []).append(each["real_time"])
    return [median_of("engine", name.replace("/real_time", ""), "ns", values)
            for name, values in times.items()]


def calls(context: Context) -> list[Figure]:
    """Allocating, freeing and operators in PyTorch, beside its own allocator."""
    file = context.folder / "calls.json"
    context.run([sys.executable, ROOT / "bench/overhead/overhead.py", "--only", "calls", "--rounds",
                 3 if context.quick else 9, "--figures", file], 900)
    found = json.loads(file.read_text())
    return [median_of("calls", what, "ns", [each[what] for each in found["firn"]],
                      peers={"PyTorch's own": statistics.median(each[what]
                                                                for each in found["native"])})
            for what in found["native"][0]]


def launch(context: Context) -> list[Figure]:
    """A launch through the library in front of the driver, beside the driver alone."""
    said = context.run([BUILD / "bench/preload/launch", BUILD / "bench/preload/libno_kernel.so",
                        1000, 100_000 if context.quick else 1_000_000], 300,
                       LD_PRELOAD=str(BUILD / "allocator/preload/libfirn_preload.so"),
                       LD_LIBRARY_PATH=str(SOFTWARE.parent), FIRN_DEVICE="software",
                       FIRN_GPU_MEMORY="8GiB", FIRN_LIB=str(BUILD / "backing/gpu"))
    figures = []
    for line in said.splitlines():
        found = re.match(r"\s*(\d+ blocks live, .+?)\s+driver alone\s+([\d.]+) ns, added\s+"
                         r"(-?[\d.]+) ns", line)
        if found:
            alone = float(found.group(2))
            figures.append(Figure("launch", found.group(1), "ns", alone + float(found.group(3)),
                                  peers={"the driver alone": alone}))
    if not figures:
        raise LeftOut("launch printed no figures")
    return figures


def _fio(context: Context, engine_name: str, write: bool, mib: int, depth: int,
         total_mib: int) -> tuple[float, float]:
    """MB/s, and milliseconds of a processor for each GB."""
    said = context.run(
        ["fio", "--name=firn", f"--directory={context.folder}", "--filename=fio.data",
         f"--ioengine={engine_name}", f"--rw={'write' if write else 'read'}", f"--bs={mib}m",
         f"--iodepth={depth}", f"--size={total_mib}m", "--direct=1", "--overwrite=1",
         "--output-format=json", "--end_fsync=0", "--numjobs=1",
         *(("--fixedbufs=1", "--registerfiles=1") if engine_name == "io_uring" else ())], 300)
    job = json.loads(said[said.index("{"):])["jobs"][0]
    side = job["write" if write else "read"]
    moved = side["io_bytes"]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"]   # ms
    return side["bw_bytes"] / 1e6, cpu / (moved / 1e9)


def store(context: Context) -> list[Figure]:
    """The store beside fio (io_uring and libaio) at the same sizes and depths."""
    total = 512 if context.quick else 2048
    cases = [(1, 16), (2, 16)] if context.quick else [(1, 1), (1, 16), (1, 64), (2, 16), (4, 16),
                                                      (32, 4)]
    peers = {"fio io_uring": "io_uring", "fio libaio": "libaio"}
    if not shutil.which("fio"):
        context.left_out.append("store: no fio on this machine: no peer")
        peers = {}
    figures = []
    for mib, depth in cases:
        values: dict[tuple[str, bool], list[float]] = {}
        costs: dict[tuple[str, bool], list[float]] = {}
        for _ in range(2 if context.quick else 4):
            said = context.run([BUILD / "bench/store/store_bench", context.folder, mib, depth,
                                total], 600)
            for line in said.splitlines():
                found = re.match(r"(io_uring|threads)\s+(overwrite|read)\s+(\d+) MB/s\s+([\d.]+)",
                                 line)
                if found:
                    key = (found.group(1), found.group(2) == "overwrite")
                    values.setdefault(key, []).append(float(found.group(3)))
                    costs.setdefault(key, []).append(float(found.group(4)))
            for peer, engine_name in peers.items():
                for write in (True, False):
                    try:
                        speed, cost = _fio(context, engine_name, write, mib, depth, total)
                    except LeftOut as reason:
                        context.left_out.append(f"store, {peer}: {reason}")
                        continue
                    values.setdefault((peer, write), []).append(speed)
                    costs.setdefault((peer, write), []).append(cost)
        for write in (True, False):
            ours = values.get(("io_uring", write)) or values.get(("threads", write))
            if not ours:
                continue
            what = f"{'write' if write else 'read'} {mib} MiB x {depth}"
            others = {peer: statistics.median(values[peer, write])
                      for peer in (*peers, "threads") if (peer, write) in values}
            figures.append(median_of("store", what, "MB/s", ours, better="higher", peers={
                "pread and pwrite" if key == "threads" else key: value
                for key, value in others.items()}))
            figures.append(median_of(
                "store", what + ", processor", "ms/GB", costs.get(("io_uring", write), [0.0]),
                peers={peer: statistics.median(costs[peer, write]) for peer in peers
                       if (peer, write) in costs}))
    return figures


def deciding(context: Context) -> list[Figure]:
    """What learning an event takes, and a decision against the events of a period."""
    figures = []
    for what, ns in re.findall(r"(\S[^:\n]*): ([\d.]+) ns per event",
                               context.run([BUILD / "bench/lifetimes/history_bench"], 300)):
        figures.append(Figure("deciding", f"an event, {what}", "ns", float(ns)))
    sizes = (1000, 10_000) if context.quick else (1000, 10_000, 100_000)
    said = context.run([BUILD / "bench/lifetimes/decide_bench", *sizes], 600)
    for line in said.splitlines()[1:]:
        cells = line.split()
        figures.append(Figure("deciding", f"a decision, {cells[2]} events", "ms", float(cells[3])))
    return figures


def layout(context: Context) -> list[Figure]:
    """Static layouts of random instances: height over load, and seconds."""
    figures = []
    for count in (1000, 10_000) if context.quick else (1000, 10_000, 100_000):
        file = context.folder / f"{count}.csv"
        _instance(file, count)
        found = json.loads(context.run([BUILD / "allocator/command/firn", "layout", file,
                                        "--deadline", "2s", "--json"], 60))
        figures.append(Figure("layout", f"{count:,} buffers, height over load", "",
                              found["height"] / found["load"]))
        figures.append(Figure("layout", f"{count:,} buffers", "s", found["seconds"]))
    return figures


def _instance(file: pathlib.Path, count: int) -> None:
    import random
    draw = random.Random(1)
    with open(file, "w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out)
        rows.writerow(("id", "lower", "upper", "size"))
        for each in range(count):
            begin = draw.randrange(10 * count)
            length = max(1, int(draw.paretovariate(1.1) * 10))
            rows.writerow((each, begin, begin + length,
                           max(1, int(draw.paretovariate(1.2) * 64)) * 64))


def jobs(context: Context) -> list[Figure]:
    """Whole training jobs in simulation: speed at parts of the memory (bench/jobs)."""
    out = context.folder / "jobs"
    names = "gpt-8192,vit-large" if context.quick else \
        "gpt-8192,bert-8192,t5-8192,llama3-8b,granite-8b,llama3-70b-tp8,mixture-8x,bert-large," \
        "vit-large,resnet152"
    context.run([sys.executable, ROOT / "bench/jobs/figures.py", "--jobs", names, "--budgets",
                 "100,80,50" if context.quick else "100,90,80,70,60,50,40,35,30,20", "--out", out],
                3000)
    figures = []
    for job in json.loads((out / "jobs.json").read_text())["jobs"]:
        if "error" in job:
            context.left_out.append(f"jobs, {job['job']}: {job['error']}")
            continue
        for row in job["budgets"]:
            def part(column):
                return job["seconds"] / row[column]["steady_s"]
            if "steady_s" not in row["lifetime"]:
                context.left_out.append(f"jobs, {job['job']} at {row['percent']} %: "
                                        f"{row['lifetime']['error']}")
                continue
            figures.append(Figure(
                "jobs", f"{job['job']} at {row['percent']} %", "of unlimited", part("lifetime"),
                better="higher",
                peers={column: part(column)
                       for column in ("age", "recompute", "save-on-cpu", "streaming", "paging")
                       if "steady_s" in row[column]}))
    return figures


STEPS: dict[str, Callable[[Context], list[Figure]]] = {
    each.__name__: each for each in (calls, engine, launch, store, deciding, layout, jobs)}


def scratch(where: pathlib.Path) -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="firn-bench-", dir=where)
