"""A GRU in both directions over packed sequences of several lengths, with Adagrad."""

import torch
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

import job
import report


def main():
    args = job.arguments(__doc__, width=256, sequences=32, longest=48)
    embed = torch.nn.Embedding(8192, args.width).cuda()
    gru = torch.nn.GRU(args.width, args.width, 2, batch_first=True, bidirectional=True).cuda()
    head = torch.nn.Linear(args.width * 2, 64).cuda()
    parameters = [*embed.parameters(), *gru.parameters(), *head.parameters()]
    optimizer = torch.optim.Adagrad(parameters, lr=1e-2)
    for step in range(args.steps):
        lengths = torch.randint(4, args.longest, (args.sequences,)).tolist()
        packed = pack_sequence([embed(torch.randint(8192, (length,), device="cuda"))
                                for length in lengths], enforce_sorted=False)
        out, sizes = pad_packed_sequence(gru(packed)[0], batch_first=True)
        last = out[torch.arange(len(lengths)), sizes - 1]
        loss = torch.nn.functional.cross_entropy(
            head(last), torch.randint(64, (args.sequences,), device="cuda"))
        job.step(step, loss, optimizer)
    report.finish(parameters)


if __name__ == "__main__":
    main()
