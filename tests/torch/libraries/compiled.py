"""torch.compile without a compiler of kernels (aot_eager), over a vision transformer of its own."""

import torch

import job
import report


def main():
    args = job.arguments(__doc__, width=384, layers=4, batch=8, patches=64)
    net = torch.nn.Sequential(
        torch.nn.Linear(192, args.width),
        *[torch.nn.TransformerEncoderLayer(args.width, 6, args.width * 4, dropout=0.,
                                           batch_first=True) for _ in range(args.layers)],
        torch.nn.Linear(args.width, 100)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=.01, momentum=.9, nesterov=True)
    fast = torch.compile(net, backend="aot_eager")
    for step in range(args.steps):
        x = torch.randn(args.batch, args.patches, 192, device="cuda")
        y = torch.randint(100, (args.batch,), device="cuda")
        loss = torch.nn.functional.cross_entropy(fast(x).mean(1), y)
        job.step(step, loss, optimizer)
    report.finish(net.parameters())


if __name__ == "__main__":
    main()
