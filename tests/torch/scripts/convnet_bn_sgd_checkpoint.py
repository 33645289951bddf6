"""A residual convolutional network with batch norm, SGD with momentum, and checkpointed stages."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import report


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm_first, self.norm_second = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        y = F.relu(self.norm_first(self.first(x)))
        return F.relu(x + self.norm_second(self.second(y)))


class Network(nn.Module):
    def __init__(self, channels, blocks):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.plain = nn.ModuleList(Residual(channels) for _ in range(blocks))
        self.recomputed = nn.ModuleList(Residual(channels) for _ in range(blocks))
        self.head = nn.Linear(channels, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.plain:
            x = block(x)
        for block in self.recomputed:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x.mean(dim=(2, 3)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=64, help="of a picture's side")
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=5)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = Network(args.channels, args.blocks).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4,
                                nesterov=True)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    generator = torch.Generator().manual_seed(args.seed)
    for step in range(args.steps):
        pictures = torch.randn(args.batch, 3, args.size, args.size, generator=generator)
        labels = torch.randint(10, (args.batch,), generator=generator)
        loss = F.cross_entropy(model(pictures.to("cuda")), labels.to("cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        report.loss(step, loss)
    report.finish(model.state_dict().values())


if __name__ == "__main__":
    main()
