"""One operator whose tensors cannot all be on the GPU at once: it must be refused in words that say
so, nothing that was there before may change, and the program must be able to go on."""

import argparse
import sys

import torch

import report

MIB = 1 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensor-mib", type=int, default=96)
    parser.add_argument("--tensors", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    count = args.tensor_mib * MIB // 4
    tensors = [torch.rand(count, device="cuda") for _ in range(args.tensors)]
    before = [report.digest([tensor]) for tensor in tensors]
    try:
        joined = torch.cat(tensors)  # needs the tensors and a result as large as all of them
    except torch.cuda.OutOfMemoryError as error:
        print("refused " + " ".join(str(error).split()))
    else:
        print(f"joined {report.digest([joined])}")
        del joined
    after = [report.digest([tensor]) for tensor in tensors]
    if before != after:
        sys.exit("the refused operator changed its inputs")
    for step, (a, b) in enumerate(zip(tensors, tensors[1:])):
        a.add_(b)
        report.loss(step, a[0])
    report.finish(tensors)


if __name__ == "__main__":
    main()
