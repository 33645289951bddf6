"""Trains a large GPT with AdamW, all of it in bf16: an ordinary script, which knows the GPU as
"cuda". Writes what happened to a JSON file: losses to the last bit, the time of each step."""

import argparse
import json
import pathlib
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import pins


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm_attention(x)).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x))))


class Gpt(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.token = nn.Embedding(args.vocabulary, args.width)
        self.place = nn.Embedding(args.length, args.width)
        self.layers = nn.ModuleList(Layer(args.width, args.heads) for _ in range(args.layers))
        self.checkpoint = args.checkpoint
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, args.vocabulary, bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.place.weight[:tokens.shape[1]]
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoint else layer(x)
        return self.head(self.norm(x))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=32768)
    parser.add_argument("--checkpoint", action="store_true",
                        help="of each layer only the input is kept for backward")
    parser.add_argument("--deterministic", action="store_true",
                        help="only operators whose results do not depend on timing")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    return parser.parse_args()


def bits(parameters):
    """A number that differs where any parameter does, most likely: made on the device."""
    total = 0
    for number, parameter in enumerate(parameters):
        words = parameter.detach().flatten().view(torch.int16)
        total += (number + 1) * int(words.sum(dtype=torch.int64))
    return total


def main():
    args = arguments()
    if args.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Gpt(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=.1, fused=True)
    draw = torch.Generator().manual_seed(1)
    losses, seconds = [], []
    for step in range(args.steps):
        begin = time.perf_counter()
        rows = torch.randint(args.vocabulary, (args.batch, args.length + 1), generator=draw)
        rows = rows.to("cuda")
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        del logits
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        pins.sample()
        print(f"step {step + 1}/{args.steps}  loss {losses[-1]:.6f}  {seconds[-1]:.3f} s",
              flush=True)
    args.out.write_text(json.dumps({
        "gpu": torch.cuda.get_device_name(), "losses": [loss.hex() for loss in losses],
        "bits": bits(model.parameters()), "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": args.batch * args.length, "seconds_of_steps": seconds,
        "peak_bytes": torch.cuda.max_memory_allocated(), "pinned": pins.most()}) + "\n")


if __name__ == "__main__":
    main()
