"""bf16 autocast with gradients accumulated over micro-batches, and a gradient scaler."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

import report
import text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=5)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    layer = nn.TransformerEncoderLayer(args.width, 4, 4 * args.width, dropout=0.1,
                                       activation="gelu", batch_first=True, norm_first=True)
    model = nn.ModuleDict({
        "token": nn.Embedding(256, args.width),
        "body": nn.TransformerEncoder(layer, args.layers, enable_nested_tensor=False),
        "head": nn.Linear(args.width, 256),
    }).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    data = text.batches(text.library_text(1 << 20), args.steps * args.micro_batches, args.batch,
                        args.length, args.seed)
    total = torch.zeros((), device="cuda")
    for number, (tokens, targets) in enumerate(data):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            states = model["body"](model["token"](tokens.to("cuda")))
            logits = model["head"](states)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.to("cuda").flatten())
        scaler.scale(loss / args.micro_batches).backward()
        total += loss.detach() / args.micro_batches
        if (number + 1) % args.micro_batches == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            report.loss(number // args.micro_batches, total)
            total.zero_()
    report.finish(model.state_dict().values())


if __name__ == "__main__":
    main()
