"""A convolutional network fed by a DataLoader with workers and pinned memory; its state is saved,
loaded into a second model, and evaluated there."""

import argparse
import io

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import report


class Pictures(Dataset):
    def __init__(self, count, size):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, self.size, self.size, generator=generator), index % 10


def network(channels):
    layers = [nn.Conv2d(3, channels, 3, padding=1), nn.ReLU()]
    for _ in range(7):
        layers += [nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                   nn.BatchNorm2d(channels), nn.GELU(), nn.Dropout2d(0.1)]
    layers += [nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * channels, 10)]
    return nn.Sequential(*layers).to("cuda")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = network(args.channels)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Pictures(args.steps * args.batch, args.size), args.batch, shuffle=True,
                        num_workers=args.workers, pin_memory=True,
                        generator=torch.Generator().manual_seed(args.seed))
    for step, (pictures, labels) in enumerate(loader):
        if not pictures.is_pinned():
            raise RuntimeError("the loader's batch is not in pinned memory")
        pictures = pictures.to("cuda", non_blocking=True)
        labels = labels.to("cuda", non_blocking=True)
        loss = F.cross_entropy(model(pictures), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        report.loss(step, loss)

    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    saved.seek(0)
    state = torch.load(saved, map_location="cuda", weights_only=True)
    second = network(args.channels)
    second.load_state_dict(state["model"])
    second.eval()
    with torch.no_grad():
        scores = second(pictures)
    report.loss(args.steps, F.cross_entropy(scores, labels))
    report.finish([*second.state_dict().values(), scores])


if __name__ == "__main__":
    main()
