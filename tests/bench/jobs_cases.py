"""Run by test_jobs.py: small jobs, recorded on fake tensors and run for real on the CPU. Prints JSON:
by job, the peak of memory that the recording says and the one that the CPU's allocator saw."""

import contextlib
import json
import pathlib
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/jobs"))
import gpus  # noqa: E402
import models  # noqa: E402
import record  # noqa: E402

SMALL = {"vocabulary": 2000, "hidden": 256, "inner": 700, "heads": 4, "kv_heads": 2}
JOBS = {
    "llama": models.Job("llama", models.llama, 2, 128, 3, options=SMALL),
    **{name + ("-shards" if shards > 1 else ""): models.Job(
        name, getattr(models, name), 2, 128, 3, shards=shards, options={"hidden": 256, "heads": 4})
       for name in ("bert", "t5", "gpt") for shards in (1, 2)},
    "shards": models.Job("shards", models.llama, 2, 128, 3, shards=2, options=SMALL),
    "resnet": models.Job("resnet", models.resnet, 1, mixed=True),
}


def measured(job):
    """Bytes alive at most in a step, by the allocator's reports, with what was alive before it."""
    with contextlib.ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32 if job.mixed else torch.bfloat16)
        model, loss = job.build(job)
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step():
            with torch.autocast("cpu", torch.bfloat16) if job.mixed else contextlib.nullcontext():
                value = loss()
            value.backward()
            del value
            optimizer.step()
            optimizer.zero_grad()
        step()
        held = [*model.state_dict().values(),
                *(each for state in optimizer.state.values() for each in state.values())]
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
            step()
    alive = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            alive += event.nbytes()
            peak = max(peak, alive)
    return peak + sum({each.untyped_storage()._cdata: each.untyped_storage().nbytes()
                       for each in held}.values())


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    found = {}
    for name, job in JOBS.items():
        ways = record.WAYS if name == "llama" else ("plain",)
        found[name] = {way: record.record(job, way).summary(gpus.GPUS["a100"])
                       for way in ways}
        if job.shards == 1:
            found[name]["measured"] = measured(job)
            if name == "llama":
                for optimizer in ("fp32", "host"):
                    recorded = record.record(job, "relay", 2, optimizer)
                    found[optimizer] = {**recorded.summary(gpus.GPUS["a100"]), "hosted": [
                        (outs[-1] in recorded.persistent, len(ins), len(outs))
                        for _, cost, ins, outs in recorded.kernels if cost.stepped]}
        else:
            kernels = record.record(job, "plain").kernels
            found[name]["all_reduces"] = sum(each[0] == "all_reduce" for each in kernels)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
