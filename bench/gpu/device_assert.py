"""A job under memory pressure whose kernel fails an assertion: an index that an embedding has not.

    device_assert.py --blocks N --mib N --out FILE

Writes when the failing kernel was queued, then goes on as a training loop would, until PyTorch raises
the program's own error. (The process ends with that exception.)"""

import argparse
import json
import pathlib
import time

import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    table = torch.randn(1000, 64, device="cuda")
    right = torch.zeros(256, dtype=torch.int64, device="cuda")
    wrong = right + 1_000_000
    blocks = [torch.full((args.mib << 18,), float(i), device="cuda") for i in range(args.blocks)]
    for number in range(40):
        if number == 2:
            torch.cuda.synchronize()
            args.out.write_text(json.dumps({"queued_s": time.time()}) + "\n")
        indices = wrong if number == 2 else right
        picked = torch.nn.functional.embedding(indices, table)
        for block in blocks:
            block.add_(1)
        made = [torch.zeros(args.mib << 18, device="cuda") for _ in range(4)]
        del made
        print(f"round {number}", flush=True)
        if number % 8 == 7:
            print(float(picked.sum()), flush=True)


if __name__ == "__main__":
    main()
