"""Small models."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads, dropout=0.0):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width), nn.Dropout(dropout))

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
        q, k, v = (t.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
                   for t in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary=64, width=48, heads=4, layers=3, time=32, dropout=0.0):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(time, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gpt_batches(steps, vocabulary=64, batch=4, time=32):
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        text = torch.randint(vocabulary, (batch, time + 1), generator=generator)
        yield text[:, :-1].contiguous(), text[:, 1:].contiguous()


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16),
                                   nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32),
                                    nn.ReLU(inplace=True))
        self.third = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, groups=32), nn.BatchNorm2d(32),
                                   nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(32, 10)

    def forward(self, x, checkpoint=False):
        if checkpoint:
            x = torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=False)
            x = torch.utils.checkpoint.checkpoint(self.second, x, use_reentrant=False)
        else:
            x = self.second(self.first(x))
        x = self.third(x)
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, kind, layers=2, dropout=0.0):
        super().__init__()
        self.tokens = nn.Embedding(32, 24)
        self.rnn = kind(24, 40, num_layers=layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(40, 32)

    def forward(self, tokens, targets):
        states, _ = self.rnn(self.tokens(tokens))
        return nn.functional.cross_entropy(self.head(states).flatten(0, 1), targets.flatten())
