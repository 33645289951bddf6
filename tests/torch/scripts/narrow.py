"""Only tensors below 1 MiB: a deep and narrow network with AdamW, beside it thousands of tensors of
4 KiB, each used now and then."""

import argparse

import torch

import report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--tensors", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    layers = []
    for _ in range(args.layers):
        layers += [torch.nn.Linear(args.width, args.width), torch.nn.LayerNorm(args.width),
                   torch.nn.Tanh()]
    net = torch.nn.Sequential(*layers).cuda()
    table = [torch.randn(1024, device="cuda") for _ in range(args.tensors)]
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(args.steps):
        x = torch.randn(32, args.width, device="cuda")
        loss = (net(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for number in range(step, args.tensors, 7):
            table[number].mul_(.5).add_(table[number - 1])
        report.loss(step, loss)
        report.loss(step, sum(each[0] for each in table[::97]))
    report.finish([*net.parameters(), *table])


if __name__ == "__main__":
    main()
