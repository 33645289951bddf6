"""A program that runs out of memory, catches that, and goes on with smaller batches. (The first are
out of memory wherever it runs, so that runs can be compared.)"""

import torch

import job
import report


def main():
    args = job.arguments(__doc__, steps=4, width=1024, batch=4096, most=512)
    net = torch.nn.Sequential(*[layer for _ in range(6) for layer in
                                (torch.nn.Linear(args.width, args.width), torch.nn.ReLU())]).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=.9)
    batch = args.batch
    while batch > args.most:
        try:
            if batch > args.most * 2:
                torch.empty(1 << 42, device="cuda")
            net(torch.zeros(batch, args.width, device="cuda")).sum().backward()
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
        batch //= 2
        optimizer.zero_grad()
    for step in range(args.steps):
        x = torch.randn(batch, args.width, device="cuda")
        loss = (net(x) - x).square().mean()
        job.step(step, loss, optimizer)
    report.finish(net.parameters())


if __name__ == "__main__":
    main()
