"""Many layers of operators that are cheap beside the memory that they make, by SGD: an iteration that
repeats itself, or that is interrupted by evaluations and by batches of another size."""

import argparse

import torch
import torch.nn.functional as F

import report

REPLACED = {"gelu": lambda x, approximate="none": x * torch.sigmoid(1.702 * x),
            "_softmax": lambda x, dim, half: torch.exp(x - x.logsumexp(dim, True))}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--interrupted", action="store_true")
    parser.add_argument("--replaced", choices=REPLACED,
                        help="the kernel of this operator is another; its out= overload has torch's")
    args = parser.parse_args()
    if args.replaced:
        library = torch.library.Library("aten", "IMPL")  # (its kernel is there while it is)
        library.impl(args.replaced, REPLACED[args.replaced], "CUDA")
    torch.manual_seed(0)
    weights = [(torch.randn(256, 256, device="cuda") * .05).requires_grad_()
               for _ in range(args.layers)]
    optimizer = torch.optim.SGD(weights, lr=1e-3)
    data = torch.randn(args.rows, 256, device="cuda")

    def loss_of(x):
        for weight in weights:
            y = F.softmax(F.gelu(x @ weight), -1)
            x = x + y * 2
        return (x * x).mean()

    for step in range(args.steps):
        short = args.interrupted and step % 9 == 8
        loss = loss_of(data[:args.rows // 2] if short else data)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        report.loss(step, loss)
        if args.interrupted and step % 7 == 6:
            with torch.no_grad():
                report.loss(step, loss_of(data))
    report.finish(weights)


if __name__ == "__main__":
    main()
