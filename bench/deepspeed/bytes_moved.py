#!/usr/bin/env python3
"""Bytes over the link and to files, like with like: a GPT that DeepSpeed offloads (ZeRO-Offload,
ZeRO-3 with all in host memory, ZeRO-Infinity), and the same program without any offloading under
Firn, in the memory that DeepSpeed reached.

  bench/deepspeed/bytes_moved.py [--only NAME] [--steps 8] [--host 4GiB] [--out FILE.json]

Both on the GPU in software, whose own counts tell what each step brings over the link, either way
(firnGpuCounts; Firn's statistics are not asked for it); read_bytes and write_bytes of /proc/self/io
tell what it reads from files and writes to them. The budget is the most that PyTorch had allocated
in DeepSpeed's steady steps; figures are of the second half of the steps. Firn's run has to have the
losses and parameters of the run that has no offloading and all of the memory, to the bit;
DeepSpeed's is compared with that run too. Blocks that leave the GPU under Firn go to host memory,
and to files once that is full: beside ZeRO-Infinity there are runs with too little of it. Speed is
no figure of this: a processor is the GPU. DeepSpeed comes from PyPI, below build/peers; there
ZeRO-Infinity's operator is built, once, in 3 to 5 minutes, with g++, ninja, a CUDA toolkit and
libaio (apt-get install libaio-dev).
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench"), str(ROOT / "pytorch_plugin/runs")]
import script_runs  # noqa: E402
from firn_bench import machine, peers  # noqa: E402
from firn_bench.context import Context, LeftOut  # noqa: E402

JOB = str(ROOT / "bench/deepspeed/job.py")
MIB = 1 << 20
WAYS = {"to_device": "copied_to_device_bytes", "to_host": "copied_to_host_bytes",
        "from_files": "files_read_bytes", "to_files": "files_write_bytes"}
SMALL_HOST = "64MiB"   # with which Firn has to use files
# Copies, and where each goes; ZeRO-3 has gradients over the link three times.
OFFLOAD = ("out: gradients in fp32; in: parameters in bf16; the processor updates; masters and "
           "AdamW's two states stay in host memory")
TWICE = ("out: gradients in bf16, to a buffer in host memory, and again in fp32; in: those in "
         "bf16, to be made fp32, and parameters in bf16; the processor updates; ")
AT_HOST = TWICE + "parameters, masters and AdamW's two states stay in host memory"
INFINITY = TWICE + ("from files, by pinned buffers in host memory: parameters in bf16, masters, "
                    "AdamW's two states and gradients in fp32; all of them to files again, but for "
                    "the small ones, which stay in memory")
OURS = ("out and in: blocks by their next use, masters and states among them, for the GPU updates; "
        "to host memory ({host}) first, to files {files}")


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    stage: int
    offload: str
    copies: str       # which go where
    # With Firn: the same program with nothing offloaded, and what else may have that memory.
    firn: tuple[tuple[str, int, bool], ...]   # its name, its stage, whether files have to be used


PLAIN = ("PyTorch alone", 0, False)
CASES = (Case("ZeRO-Offload", 2, "optimizer", OFFLOAD,
              (("the same, not offloaded", 2, False), PLAIN)),
         Case("ZeRO-3 in host memory", 3, "all", AT_HOST,
              (("the same, not offloaded", 3, False), PLAIN)),
         Case("ZeRO-Infinity", 3, "nvme", INFINITY,
              (("the same, not offloaded", 3, False), PLAIN,
               ("the same, not offloaded, with files", 3, True),
               ("PyTorch alone, with files", 0, True))))


def each_step(run: script_runs.Run) -> dict[str, int]:
    """Bytes over the link and to files in a step, the mean of the second half."""
    counts = [json.loads(each) for each in run.values("step")]
    first, last = counts[len(counts) // 2 - 1], counts[-1]
    steps = len(counts) - len(counts) // 2
    return {way: (last[count] - first[count]) // steps for way, count in WAYS.items()
            if count in last}


def ended(run: script_runs.Run, what: str) -> script_runs.Run:
    if run.status != 0:
        said = run.text.strip().splitlines() or ["no word"]
        raise LeftOut(f"{what} ended with {run.status}: {said[-1]}")
    return run


def differences(run: script_runs.Run, unlimited: script_runs.Run) -> dict[str, float]:
    """The most by which losses and saved parameters differ, and the part of those that do."""
    import numpy
    losses = [abs(float(ours) - float(theirs))
              for ours, theirs in zip(run.values("loss"), unlimited.values("loss"))]
    found = {"losses_most": max(losses)}
    files = [each.values("saved") for each in (run, unlimited)]
    if all(files):
        ours, theirs = (numpy.fromfile(file, numpy.float32) for (file,) in files)
        apart = numpy.abs(ours - theirs)
        found |= {"parameters_most": float(apart.max()),
                  "parameters_part": float(numpy.count_nonzero(apart) / apart.size)}
    return found


def compare(case: Case, native, with_firn, host: str = "") -> dict[str, Any]:
    """native(stage, offload) and with_firn(stage, budget, files) are runs of the job."""
    unlimited, theirs = native(case.stage, "none"), native(case.stage, case.offload)
    budget = theirs.budget(1)
    found: dict[str, Any] = {
        "case": case.name, "stage": case.stage, "offload": case.offload, "budget_bytes": budget,
        "deepspeed": {"peak_bytes": theirs.peak(), "copies": case.copies,
                      "device_bytes_peak": theirs.counts["used_bytes_peak"], **each_step(theirs),
                      "same_losses": theirs.values("loss") == unlimited.values("loss"),
                      "equal": theirs.results() == unlimited.results()},
        "firn": []}
    if not found["deepspeed"]["equal"]:
        found["deepspeed"]["differences"] = differences(theirs, unlimited)
    for name, stage, files in case.firn:
        unlimited, ours = native(stage, "none"), with_firn(stage, budget, files)
        device = ours.device()
        found["firn"].append({
            "way": name, "stage": stage, **each_step(ours),
            "copies": OURS.format(host=SMALL_HOST if files else host,
                                  files="once that is full" if files else "never"),
            "device_bytes_peak": ours.counts["used_bytes_peak"],
            "unlimited": {"peak_bytes": unlimited.peak(), **each_step(unlimited)},
            "equal": ours.results() == unlimited.results(),
            **{key: device[key] for key in ("spilled_bytes", "faulted_bytes", "prefetched_bytes",
                                            "host_use_bytes")},
            "store": {key: ours.stats.get("store", {}).get(key, 0)
                      for key in ("written_bytes", "read_bytes")}})
    return found


def line(found: dict[str, Any]) -> str:
    def mib(of):
        written, read = (of.get(way, 0) / MIB for way in ("to_files", "from_files"))
        return f"{of['to_host'] / MIB:.0f} MiB out, {of['to_device'] / MIB:.0f} in" + (
            f" ({written:.0f} MiB to files, {read:.0f} from them)" if written + read >= 1 else "")
    ours = "; ".join(f"{each['way']} ({each['unlimited']['peak_bytes'] / MIB:.0f} MiB) with Firn: "
                     f"{mib(each)}, bits {'equal' if each['equal'] else 'DIFFER'}"
                     for each in found["firn"])
    return (f"{found['case']}, in {found['budget_bytes'] / MIB:.0f} MiB a step has "
            f"{mib(found['deepspeed'])} by DeepSpeed, bits "
            f"{'equal' if found['deepspeed']['equal'] else 'DIFFER'}; {ours}")


def missing() -> list[str]:
    """The needs of DeepSpeed's aio operator that are not here, and how each is installed."""
    from torch.utils.cpp_extension import CUDA_HOME
    found = [f"{program} ({how})" for program, how in (
        ("g++", "apt-get install g++"), ("ninja", "pip install ninja"))
        if not shutil.which(program)]
    if not found:
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder) / "try.cpp"
            source.write_text("#include <libaio.h>\nint main() { return !io_setup; }\n")
            tried = subprocess.run(["g++", source, "-o", source.with_suffix(""), "-laio"],
                                   capture_output=True)
        if tried.returncode:
            found.append("libaio's header and library (apt-get install libaio-dev)")
    if CUDA_HOME is None:
        found.append("a CUDA toolkit, for headers and libcudart.so (CUDA_HOME names it)")
    return found


def aio(context: Context, paths: script_runs.Paths, environment: dict[str, str]) -> dict[str, str]:
    """`environment` with DeepSpeed's aio operator, built as a program with a GPU has it. (One built
    for processors alone, peers.deepnvme(), lies in another folder: each would be built anew.)"""
    lacking = missing()
    if lacking:
        raise LeftOut(f"DeepSpeed's aio operator needs {' and '.join(lacking)}")
    built = {**environment, "MAX_JOBS": str(os.cpu_count() or 1),
             "TORCH_EXTENSIONS_DIR": str(pathlib.Path(environment["PYTHONPATH"]) / "built-gpu")}
    context.run([paths.python, ROOT / "bench/store/deepnvme.py"], peers.SECONDS,
                **{**script_runs.native_environment(paths), **built})
    return built


def measure(given: argparse.Namespace, paths: script_runs.Paths, folder: pathlib.Path,
            document: dict[str, Any]) -> None:
    context = Context(False, folder, document["left_out"])
    environment = peers.deepspeed(context)
    os.environ["PATH"] = os.pathsep.join([str(pathlib.Path(paths.python).parent),
                                          os.environ["PATH"]])

    def words(stage: int, offload: str, *more: str) -> list[str]:
        return ["--stage", str(stage), "--offload", offload, "--steps", str(given.steps), *more]

    def fresh() -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(dir=folder))

    @functools.cache
    def native(stage: int, offload: str) -> script_runs.Run:
        env = aio(context, paths, environment) if offload == "nvme" else environment
        with tempfile.TemporaryDirectory(dir=folder) as files:
            return ended(script_runs.run_native(
                paths, fresh(), JOB, *words(stage, offload, "--folder", files, "--save",
                                            str(folder / f"{stage}-{offload}.parameters")),
                environment=env), f"stage {stage}, {offload} offloaded, without Firn")

    @functools.cache
    def with_firn(stage: int, budget: int, files: bool) -> script_runs.Run:
        with tempfile.TemporaryDirectory(dir=folder) as spilled:
            return ended(script_runs.run_with_firn(
                paths, fresh(), JOB, *words(stage, "none"), environment=environment, budget=budget,
                host=SMALL_HOST if files else given.host, dirs=[spilled] if files else []),
                f"stage {stage} with Firn")

    for case in (each for each in CASES if given.only in (None, each.name)):
        try:
            document["cases"].append(compare(case, native, with_firn, given.host))
            print(line(document["cases"][-1]), flush=True)
        except LeftOut as reason:
            context.left_out.append(f"{case.name}: {reason}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[each.name for each in CASES])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--host", default="4GiB", help="pinned host memory, with Firn")
    parser.add_argument("--out", type=pathlib.Path, help="the figures, as JSON")
    given = parser.parse_args()
    if given.steps < 4:
        parser.error("--steps: at least 4, for the iteration has to be found")
    paths = script_runs.Paths.find()
    if isinstance(paths, str):
        parser.error(paths)
    document: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["bench/deepspeed/bytes_moved.py", *(
            word for before, word in zip([""] + sys.argv[1:], sys.argv[1:])
            if not {"--out"} & {before, word})]),
        "machine": machine.describe(), "deepspeed": peers.DEEPSPEED[0], "steps": given.steps,
        "counted": "link: the software GPU's counts; files: read_bytes and write_bytes of "
                   "/proc/self/io",
        "left_out": [], "cases": []}
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        try:
            measure(given, paths, pathlib.Path(folder), document)
        except LeftOut as reason:
            document["left_out"].append(f"DeepSpeed: {reason}")
    for each in document["left_out"]:
        print(f"left out: {each}")
    if given.out and document["cases"]:
        unfinished = given.out.with_suffix(".part")
        unfinished.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(given.out)
    return 0 if document["cases"] else 1


if __name__ == "__main__":
    sys.exit(main())
