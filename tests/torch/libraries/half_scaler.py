"""Half numbers under autocast, with a GradScaler and a checkpoint in each layer."""

import torch
from torch.utils.checkpoint import checkpoint

import job
import report


def main():
    args = job.arguments(__doc__, width=384, layers=6, batch=12, length=64)
    layers = torch.nn.ModuleList(
        torch.nn.TransformerEncoderLayer(args.width, 6, args.width * 4, dropout=.1,
                                         batch_first=True) for _ in range(args.layers)).cuda()
    head = torch.nn.Linear(args.width, 32).cuda()
    parameters = [*layers.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-4)
    scaler = torch.amp.GradScaler("cuda", init_scale=256., growth_interval=1)
    for step in range(args.steps):
        x = torch.randn(args.batch, args.length, args.width, device="cuda")
        y = torch.randint(32, (args.batch,), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            for layer in layers:
                x = checkpoint(layer, x, use_reentrant=False)
            loss = torch.nn.functional.cross_entropy(head(x.mean(1)), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, 1.)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        report.loss(step, loss)
        report.loss(step, scaler.get_scale())
    report.finish(parameters)


if __name__ == "__main__":
    main()
