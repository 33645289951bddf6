#!/usr/bin/env python3
"""Bytes over the link, like with like: a GPT that DeepSpeed offloads (ZeRO-Offload, ZeRO-3 with all
in host memory, ZeRO-Infinity), and the same program without any offloading under Firn, in the memory
that DeepSpeed reached.

  bench/deepspeed/bytes_moved.py [--only NAME] [--steps 8] [--host 4GiB] [--out FILE.json]

Both on the GPU in software, whose own counts tell what each step brings over the link, either way
(firnGpuCounts; Firn's statistics are not asked for it). The budget is the most that PyTorch had
allocated in DeepSpeed's steady steps; figures are of the second half of the steps. Firn's run has to
have the losses and parameters of the run that has no offloading and all of the memory, to the bit.
Speed is no figure of this: a processor is the GPU. DeepSpeed comes from PyPI, below build/peers.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import json
import pathlib
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
WAYS = ("to_device", "to_host")


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    stage: int
    offload: str
    # With Firn: the same program with nothing offloaded, and what else may have that memory.
    firn: tuple[tuple[str, int], ...]     # its name, and its stage


PLAIN = ("PyTorch alone", 0)
CASES = (Case("ZeRO-Offload", 2, "optimizer", (("the same, not offloaded", 2), PLAIN)),
         Case("ZeRO-3 in host memory", 3, "all", (("the same, not offloaded", 3), PLAIN)),
         Case("ZeRO-Infinity", 3, "nvme", (("the same, not offloaded", 3), PLAIN)))


def each_step(run: script_runs.Run) -> dict[str, int]:
    """Bytes over the link in a step, the mean of the second half."""
    counts = [json.loads(each) for each in run.values("step")]
    first, last = counts[len(counts) // 2 - 1], counts[-1]
    steps = len(counts) - len(counts) // 2
    return {way: (last[f"copied_{way}_bytes"] - first[f"copied_{way}_bytes"]) // steps
            for way in WAYS}


def ended(run: script_runs.Run, what: str) -> script_runs.Run:
    if run.status != 0:
        said = run.text.strip().splitlines() or ["no word"]
        raise LeftOut(f"{what} ended with {run.status}: {said[-1]}")
    return run


def compare(case: Case, native, with_firn) -> dict[str, Any]:
    """native(stage, offload) and with_firn(stage, budget) are runs of the job."""
    unlimited, theirs = native(case.stage, "none"), native(case.stage, case.offload)
    budget = theirs.budget(1)
    found: dict[str, Any] = {
        "case": case.name, "stage": case.stage, "offload": case.offload, "budget_bytes": budget,
        "deepspeed": {"peak_bytes": theirs.peak(),
                      "device_bytes_peak": theirs.counts["used_bytes_peak"], **each_step(theirs),
                      "same_losses": theirs.values("loss") == unlimited.values("loss")},
        "firn": []}
    for name, stage in case.firn:
        unlimited, ours = native(stage, "none"), with_firn(stage, budget)
        device = ours.device()
        found["firn"].append({
            "way": name, "stage": stage, **each_step(ours),
            "device_bytes_peak": ours.counts["used_bytes_peak"],
            "unlimited": {"peak_bytes": unlimited.peak(), **each_step(unlimited)},
            "equal": ours.results() == unlimited.results(),
            **{key: device[key] for key in ("spilled_bytes", "faulted_bytes", "prefetched_bytes",
                                            "host_use_bytes")}})
    return found


def line(found: dict[str, Any]) -> str:
    def mib(of):
        return f"{of['to_host'] / MIB:.0f} MiB out, {of['to_device'] / MIB:.0f} in"
    ours = "; ".join(f"{each['way']} ({each['unlimited']['peak_bytes'] / MIB:.0f} MiB) with Firn: "
                     f"{mib(each)}, bits {'equal' if each['equal'] else 'DIFFER'}"
                     for each in found["firn"])
    return (f"{found['case']}, in {found['budget_bytes'] / MIB:.0f} MiB a step has "
            f"{mib(found['deepspeed'])} by DeepSpeed; {ours}")


def measure(given: argparse.Namespace, paths: script_runs.Paths, folder: pathlib.Path,
            document: dict[str, Any]) -> None:
    context = Context(False, folder, document["left_out"])
    environment = peers.deepspeed(context)

    def words(stage: int, offload: str) -> list[str]:
        return ["--stage", str(stage), "--offload", offload, "--folder", str(folder),
                "--steps", str(given.steps)]

    def fresh() -> pathlib.Path:
        return pathlib.Path(tempfile.mkdtemp(dir=folder))

    @functools.cache
    def native(stage: int, offload: str) -> script_runs.Run:
        more = peers.deepspeed_aio(context) if offload == "nvme" else {}
        return ended(script_runs.run_native(
            paths, fresh(), JOB, *words(stage, offload), environment={**environment, **more}),
            f"stage {stage}, {offload} offloaded, without Firn")

    def with_firn(stage: int, budget: int) -> script_runs.Run:
        return ended(script_runs.run_with_firn(
            paths, fresh(), JOB, *words(stage, "none"), environment=environment, budget=budget,
            host=given.host), f"stage {stage} with Firn")

    for case in (each for each in CASES if given.only in (None, each.name)):
        try:
            document["cases"].append(compare(case, native, with_firn))
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
