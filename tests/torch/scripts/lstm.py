"""Two stacked LSTM layers on bytes, with Adam (foreach=False: one parameter at a time)."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

import report
import text


class Reader(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.token = nn.Embedding(256, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=0.1)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens):
        states, _ = self.lstm(self.token(tokens))
        return self.head(states)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = Reader(args.width, args.layers).to("cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    data = text.batches(text.library_text(1 << 20), args.steps, args.batch, args.length, args.seed)
    for step, (tokens, targets) in enumerate(data):
        logits = model(tokens.t().to("cuda"))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.t().to("cuda").flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report.loss(step, loss)
    report.finish(model.state_dict().values())


if __name__ == "__main__":
    main()
