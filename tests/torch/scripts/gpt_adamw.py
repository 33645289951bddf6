"""A small GPT on bytes, with dropout, gradient clipping and AdamW."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

import report
import text


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                   for t in self.qkv(self.norm_attention(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_mlp(x))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, length):
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.place(places))))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--fused", action="store_true", help="the fused AdamW")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = Gpt(args.layers, args.width, args.heads, args.length).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=args.fused or None)
    data = text.batches(text.library_text(1 << 20), args.steps, args.batch, args.length, args.seed)
    for step, (tokens, targets) in enumerate(data):
        logits = model(tokens.to("cuda"))
        loss = F.cross_entropy(logits.view(-1, 256), targets.to("cuda").reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        report.loss(step, loss)
    report.finish(model.state_dict().values())


if __name__ == "__main__":
    main()
