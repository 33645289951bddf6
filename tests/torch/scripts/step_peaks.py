"""A GPT, as gpt_adamw.py's, that says how much memory its last steps need beside what they keep."""

import argparse

import torch
import torch.nn.functional as F

import gpt_adamw
import report
import text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(1)
    model = gpt_adamw.Gpt(args.layers, args.width, 4, args.length).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data = text.batches(text.library_text(1 << 20), args.steps, args.batch, args.length, 1)
    for step, (tokens, targets) in enumerate(data):
        if step == 2:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            kept = torch.cuda.memory_allocated()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens.to("cuda")).view(-1, 256),
                               targets.to("cuda").reshape(-1))
        loss.backward()
        optimizer.step()
        report.loss(step, loss)
    print(f"beside {torch.cuda.max_memory_allocated() - kept}")
    report.finish(model.state_dict().values())


if __name__ == "__main__":
    main()
