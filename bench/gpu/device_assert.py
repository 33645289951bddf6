"""A job under memory pressure whose kernel fails an assertion: an index that an embedding has not.

    device_assert.py --blocks N --mib N --out FILE

Writes when the failing kernel was queued, then goes on as a training loop would, until PyTorch
raises the program's own error. (The process ends with that exception. On the software GPU operators
check their indices themselves: there the context is ended as by such a kernel.)"""

import argparse
import ctypes
import json
import os
import pathlib
import time

import torch


ASSERTION = 710


def software_gpu(folder):
    """The software GPU in this process, or None. By another name, which is the same library to the
    loader: by its own, Firn would answer in its place."""
    paths = {line.split()[-1] for line in open("/proc/self/maps")
             if line.rstrip().endswith("/software/libcuda.so.1")}
    if not paths:
        return None
    other = folder / f"software-gpu-{os.getpid()}.so"
    other.symlink_to(paths.pop())
    try:
        return ctypes.CDLL(str(other))
    finally:
        other.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    table = torch.randn(1000, 64, device="cuda")
    right = torch.zeros(256, dtype=torch.int64, device="cuda")
    wrong, gpu = right + 1_000_000, software_gpu(args.out.parent)
    blocks = [torch.full((args.mib << 18,), float(i), device="cuda") for i in range(args.blocks)]
    for number in range(40):
        if number == 2:
            torch.cuda.synchronize()
            args.out.write_text(json.dumps({"queued_s": time.time()}) + "\n")
        if number == 2 and gpu:
            if gpu.firnGpuDie(ASSERTION, ctypes.c_uint64(0)):
                raise SystemExit("the software GPU's context goes on")
        else:
            picked = torch.nn.functional.embedding(wrong if number == 2 else right, table)
        # First of all room is wanted, for which others would have to leave.
        empty = [torch.empty(args.mib << 18, device="cuda") for _ in range(args.blocks // 4)]
        del empty
        made = [torch.zeros(args.mib << 18, device="cuda") for _ in range(4)]
        del made
        for block in blocks:  # (the last ones are there when the next round begins)
            block.add_(1)
        print(f"round {number}", flush=True)
        if number % 8 == 7:
            print(float(picked.sum()), flush=True)


if __name__ == "__main__":
    main()
