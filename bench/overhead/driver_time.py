#!/usr/bin/env python3
"""How long the program's threads are in calls of the driver, and under the engine's lock, where
those calls take what they take on an A100: a GPT at a part of its memory on the software GPU.

  bench/overhead/driver_time.py [--steps 12] [--part .5] [--width 256] [--batch 20] [--link 55]
                                [--behind 0] [--out FILE.json]

Calls and the link are slowed down as much as the processor is slower than an A100 would be at the
same step (by a roofline, bench/jobs/gpus.py), so that all proportions are an A100's with a link of
--link GB/s. --behind: microseconds that opening and unmapping take besides while copies are under
way. Prints figures of whole runs, in parts of the time that they took: the first steps, in which
nothing is known yet, are among them.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import sys
import tempfile

from in_turn import ROOT, script_runs

DEMO = ROOT / "bench/demo"
HEADS, LAYERS, LENGTH = 4, 8, 256  # as the demo's
GIB = 1 << 30


def modelled_s(width, batch):
    """A step of it on an A100."""
    sys.path[:0] = [str(ROOT / "bench/jobs"), str(DEMO)]
    import gpus
    import torch
    import train_gpt
    from recorder import Recorder
    from torch._subclasses.fake_tensor import FakeTensorMode
    recorder = Recorder()
    with FakeTensorMode(allow_non_fake_inputs=True), recorder:
        model = train_gpt.Gpt(LAYERS, width, HEADS, LENGTH)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for step in range(2):
            if step == 1:
                states = [each for state in optimizer.state.values() for each in state.values()]
                recorder.begin([*model.state_dict().values(), *states])
            rows = torch.zeros(batch, LENGTH + 1, dtype=torch.long)
            logits = model(rows[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1),
                                                     rows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        recorder.end()
    return recorder.summary(gpus.GPUS["a100"])["seconds"]


def run(paths, given, steps, budget, environment):
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        folder = pathlib.Path(folder)
        out = folder / "result.json"
        command = script_runs.firn_command(
            paths, folder, str(DEMO / "train_gpt.py"), "--steps", steps, "--width",
            given.width, "--batch", given.batch, "--out", out, budget=budget, memory=16 * GIB,
            host=4 * GIB)
        done = script_runs.finish(command, {**script_runs.clean_environment(), **environment},
                                  folder)
        if done.status != 0:
            sys.exit(f"driver_time.py: the run ended with {done.status}:\n{done.text}")
        return json.loads(out.read_text()), done.device()


def figures(result, device):
    seconds, driver = result["seconds"], device["driver"]
    program, service = driver["program"], driver["service"]
    steps = result["steps"]
    return {"seconds": seconds,
            "program_in_driver": program["s"] / seconds,
            "program_in_driver_locked": program["locked_s"] / seconds,
            "program_waited_for_lock": program["lock_waited_s"] / seconds,
            "service_in_driver": service["s"] / seconds,
            "service_in_driver_locked": service["locked_s"] / seconds,
            "stalled": device["stall_s"] / seconds,
            "a_step": {key: device[key] / steps for key in
                       ("maps", "unmaps", "frames_created", "frames_released", "faults",
                        "evictions", "spilled_bytes", "faulted_bytes", "prefetched_bytes")}}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--part", type=float, default=.5, help="of its memory that it may have")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=20,
                        help="sequences: activations grow with them")
    parser.add_argument("--link", type=float, default=55, help="GB/s each way")
    parser.add_argument("--behind", type=float, default=0, help="us")
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    paths = script_runs.Paths.find()
    if isinstance(paths, str):
        sys.exit(f"driver_time.py: {paths}")
    free, free_device = run(paths, given, 4, 12 * GIB, {})
    scale = free["seconds"] / free["steps"] / modelled_s(given.width, given.batch)
    budget = int(free_device["peak_device_bytes"] * given.part) // (2 << 20) * (2 << 20)
    result, device = run(paths, given, given.steps, budget, {
        "FIRN_GPU_CALL_COST": f"{scale:.1f}+{given.behind:g}",
        "FIRN_GPU_LINK": f"{given.link * 1e9 / scale:.0f}"})
    document = {"date": datetime.date.today().isoformat(),
                "command": " ".join(["bench/overhead/driver_time.py", *sys.argv[1:]]),
                "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
                           "software GPU",
                "scale": scale, "budget_bytes": budget,
                "unlimited_step_s": free["seconds"] / free["steps"], **figures(result, device)}
    print(json.dumps(document, indent=1))
    if given.out:
        given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
