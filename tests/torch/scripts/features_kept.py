"""Trains, and then keeps a result of the same forward pass of each batch, whose inputs are larger and
end. Layers differ in their sizes, so that each place in the iteration can be told."""

import argparse

import torch

import report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--features", type=int, default=24)
    parser.add_argument("--layers", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(0)
    weights = [(torch.rand(4, 256, device="cuda") * .3 + .4).requires_grad_()
               for _ in range(args.layers)]
    optimizer = torch.optim.SGD(weights, lr=1e-4)
    data = torch.rand(2048, 256, device="cuda") + .1

    def results():
        y = data
        for weight in weights:
            x = torch.cumsum(y.unsqueeze(1) * weight, 1)  # (which is not made again)
            y = torch.tanh((x * x).mean(1))
            yield y
            y = y[:-8]

    for step in range(args.steps):
        *_, last = results()
        loss = last.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        report.loss(step, loss)
    features = []
    with torch.no_grad():
        for _ in range(args.features):
            for layer, result in enumerate(results()):
                if layer == args.layers - 2:
                    features.append(result)
    report.finish([*weights, *features])


if __name__ == "__main__":
    main()
