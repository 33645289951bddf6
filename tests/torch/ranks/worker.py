"""What torchrun starts: each case (of training.WRAPPERS and parallel.CASES, "collectives",
"crossing", "nccl" or "more"), one after the other. fsdp1:5 has five layers.

Every rank writes a file of lines "CASE WHAT VALUE"; what follows "peak" and "device" may differ
between two allocators, all else must not.
"""

import argparse
import gc
import os
import pathlib
import sys

import torch
import torch.distributed as dist

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "pytorch_plugin/runs/counts"))

import collectives
import crossing
import nccl_collectives
import nccl_more
import parallel
import software_counts
import training

def device_bytes_peak():
    """By the software GPU's own count, which knows nothing of Firn."""
    return software_counts.read(torch.cuda.current_device())["used_bytes_peak"]


def said_by(case, steps):
    if case == "collectives":
        return collectives.run(collectives.CASES)
    if case == "nccl":
        return collectives.run(nccl_collectives.CASES)
    if case == "more":
        return collectives.run(nccl_more.CASES)
    if case == "crossing":
        return crossing.run()
    if case in parallel.CASES:
        return parallel.CASES[case](steps)
    name, _, layers = case.partition(":")
    return training.train(name, steps, int(layers or training.LAYERS))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, help="this folder gets a file per rank")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--bind", action="store_true",
                        help="tell torch the device first: groups are then made of the large one")
    parser.add_argument("--steps", type=int, default=training.STEPS)
    parser.add_argument("cases", nargs="+")
    args = parser.parse_args()

    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group(args.backend, device_id=device if args.bind else None)
    output = pathlib.Path(args.output) / f"rank{dist.get_rank()}.txt"
    output.with_suffix(".pid").write_text(str(os.getpid()))
    with open(output, "w", encoding="utf-8") as file:
        for case in args.cases:
            before = torch.cuda.memory_allocated()  # what libraries keep of the cases before
            for what, value in said_by(case, args.steps):
                if what == "peak":
                    value -= before
                print(case, what, value, file=file, flush=True)
            gc.collect()
            torch.cuda.empty_cache()
        print("all device", device_bytes_peak(), file=file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
