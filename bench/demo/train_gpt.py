"""Trains a small GPT on the bytes of Python's own library: an ordinary script, which knows the GPU
as "cuda" and nothing of Firn. Writes what happened to a JSON file, losses to the last bit."""

import argparse
import hashlib
import json
import pathlib
import sysconfig
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    """Causal attention, written out: its matrices of scores are most of what backward needs."""

    def __init__(self, width, heads, length):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("later", later, persistent=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                   for part in self.qkv(x).split(width, dim=2))
        scores = q @ k.transpose(2, 3) / (width // self.heads) ** 0.5
        weights = scores.masked_fill(self.later, float("-inf")).softmax(dim=3)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return self.out(mixed)


class Layer(nn.Module):
    def __init__(self, width, heads, length):
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, length)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(),
                                 nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attention(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, length):
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads, length) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.place.weight[:tokens.shape[1]]
        return self.head(self.norm(self.layers(x)))


def library_text(bytes_max=4 << 20):
    text = bytearray()
    for path in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= bytes_max:
            break
    return torch.frombuffer(text[:bytes_max], dtype=torch.uint8)


def digest(tensors):
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--deterministic", action="store_true",
                        help="only operators whose results do not depend on timing")
    parser.add_argument("--out", type=pathlib.Path, help="a JSON file for the results")
    return parser.parse_args()


def main():
    args = arguments()
    if args.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(args.seed)
    device = torch.device("cuda")
    text = library_text()
    model = Gpt(args.layers, args.width, args.heads, args.length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    draw = torch.Generator().manual_seed(args.seed)

    losses, seconds = [], []
    for step in range(args.steps):
        begin = time.perf_counter()
        at = torch.randint(len(text) - args.length - 1, (args.batch,), generator=draw)
        rows = torch.stack([text[i:i + args.length + 1] for i in at.tolist()]).long().to(device)
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
        print(f"step {step + 1:2}/{args.steps}  loss {losses[-1]:.6f}  {seconds[-1]:.2f} s",
              flush=True)

    result = {
        "steps": args.steps, "gpu": torch.cuda.get_device_name(device),
        "losses": [loss.hex() for loss in losses],
        "parameters_sha256": digest(model.state_dict().values()),
        "parameters": sum(p.numel() for p in model.parameters()),
        "peak_bytes": torch.cuda.max_memory_allocated(device),
        "total_bytes": torch.cuda.mem_get_info(device)[1],
        "seconds": sum(seconds), "seconds_of_steps": seconds,
    }
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
