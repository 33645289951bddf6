"""Conv1d layers under weight norm, with Adam: much is allocated, and little of it used, before the
first step."""

import argparse

import torch

import report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    norm = torch.nn.utils.parametrizations.weight_norm
    layers = []
    for _ in range(args.layers):
        layers += [norm(torch.nn.Conv1d(args.channels, args.channels, 5, padding=2)),
                   torch.nn.LeakyReLU(0.1)]
    net = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    for step in range(args.steps):
        x = torch.randn(4, args.channels, 512, device="cuda")
        loss = (net(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report.loss(step, loss)
    report.finish(net.parameters())


if __name__ == "__main__":
    main()
