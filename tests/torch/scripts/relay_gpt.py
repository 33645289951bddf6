"""A GPT, as gpt_adamw.py's, whose steps are firn.relay's or the plain loop's over micro-batches."""

import argparse
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

import firn
import gpt_adamw
import report
import text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--relay", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--clip", type=float)
    parser.add_argument("--eager", choices=["auto", "no"], default="auto")
    parser.add_argument("--keep", default="0", help="layers, or auto")
    parser.add_argument("--fused", action="store_true", help="the fused AdamW")
    parser.add_argument("--where", choices=["device", "host", "auto"], default="device")
    parser.add_argument("--bfloat16", action="store_true", help="parameters, and sums in 32 bits")
    args = parser.parse_args()

    torch.manual_seed(1)
    model = gpt_adamw.Gpt(args.layers, args.width, args.heads, args.length).to("cuda")
    if args.bfloat16:
        model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=args.fused or None)
    data = text.batches(text.library_text(1 << 20), args.steps, args.batch, args.length, 1)
    if args.relay:
        warnings.simplefilter("error")
        relay = firn.relay(model, optimizer, micro_batches=args.micro_batches, clip=args.clip,
                           keep="auto" if args.keep == "auto" else int(args.keep),
                           eager="auto" if args.eager == "auto" else False, where=args.where,
                           accumulate=torch.float32 if args.bfloat16 else None)

    def compute(part):
        tokens, targets = part
        logits = model(tokens.to("cuda"))
        return F.cross_entropy(logits.float().view(-1, 256), targets.to("cuda").reshape(-1)) \
            / args.micro_batches

    for step, (tokens, targets) in enumerate(data):
        parts = list(zip(tokens.chunk(args.micro_batches), targets.chunk(args.micro_batches)))
        if step == 3:  # the relay's first step is the plain loop; runs 1, 2, 4 and 8 are compared
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            kept = torch.cuda.memory_allocated()
        if args.relay:
            total = relay.step(compute, parts)
        else:
            total = None
            for part in parts:
                loss = compute(part)
                loss.backward()
                total = loss.detach() if total is None else total + loss.detach()
            if args.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            optimizer.zero_grad()
        report.loss(step, total)
    if args.relay:
        print(f"graphs {sum(each.kept for each in relay._layers)}")
    if args.steps > 3:
        print(f"kept {kept}")
        print(f"beside {torch.cuda.max_memory_allocated() - kept}")
    if args.relay:
        relay.close()
    print(f"offset {torch.cuda.default_generators[0].get_offset()}")
    report.finish(model.state_dict().values())


if __name__ == "__main__":
    main()
