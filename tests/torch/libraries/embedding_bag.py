"""Recommendation: large tables by EmbeddingBag, a dot product of all pairs, SGD."""

import torch

import job
import report


def main():
    args = job.arguments(__doc__, tables=6, rows=40000, width=64, batch=512)
    tables = torch.nn.ModuleList(
        torch.nn.EmbeddingBag(args.rows, args.width, mode="sum") for _ in range(args.tables)).cuda()
    bottom = torch.nn.Sequential(torch.nn.Linear(13, 256), torch.nn.ReLU(),
                                 torch.nn.Linear(256, args.width)).cuda()
    pairs = (args.tables + 1) * args.tables // 2
    top = torch.nn.Sequential(torch.nn.Linear(pairs + args.width, 256), torch.nn.ReLU(),
                              torch.nn.Linear(256, 1)).cuda()
    parameters = [*tables.parameters(), *bottom.parameters(), *top.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=.1)
    left, right = torch.tril_indices(args.tables + 1, args.tables + 1, -1, device="cuda")
    for step in range(args.steps):
        dense = bottom(torch.randn(args.batch, 13, device="cuda"))
        rows = [table(torch.randint(args.rows, (args.batch * 4,), device="cuda"),
                      torch.arange(0, args.batch * 4, 4, device="cuda")) for table in tables]
        vectors = torch.stack([dense, *rows], 1)
        products = (vectors @ vectors.transpose(1, 2))[:, left, right]
        guess = top(torch.cat([dense, products], 1))[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            guess, torch.randint(2, (args.batch,), device="cuda").float())
        job.step(step, loss, optimizer)
    report.finish(parameters)


if __name__ == "__main__":
    main()
