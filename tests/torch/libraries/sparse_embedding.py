"""Tables with sparse gradients, by SparseAdam, beside dense layers by AdamW."""

import torch

import job
import report


def main():
    args = job.arguments(__doc__, rows=60000, width=96, batch=256, words=16)
    words = torch.nn.Embedding(args.rows, args.width, sparse=True).cuda()
    places = torch.nn.EmbeddingBag(args.rows, args.width, mode="sum", sparse=True).cuda()
    top = torch.nn.Sequential(torch.nn.Linear(args.width * 2, 512), torch.nn.ReLU(),
                              torch.nn.Linear(512, 1)).cuda()
    of_tables = torch.optim.SparseAdam([*words.parameters(), *places.parameters()], lr=1e-3)
    of_top = torch.optim.AdamW(top.parameters(), lr=1e-3)
    for step in range(args.steps):
        tokens = torch.randint(args.rows, (args.batch, args.words), device="cuda")
        seen = torch.cat([words(tokens).mean(1), places(tokens.flip(1))], 1)
        wanted = (tokens.sum(1) % 2).float()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(top(seen)[:, 0], wanted)
        of_tables.zero_grad()
        of_top.zero_grad()
        loss.backward()
        of_tables.step()
        of_top.step()
        report.loss(step, loss)
    report.finish([*words.parameters(), *places.parameters(), *top.parameters()])


if __name__ == "__main__":
    main()
