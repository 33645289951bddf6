"""The program's own way to spare memory: activations on the host, optimizer states moved about."""

import torch

import job
import report


def main():
    args = job.arguments(__doc__, width=1024, layers=6, batch=512)
    net = torch.nn.Sequential(*[layer for _ in range(args.layers) for layer in
                                (torch.nn.Linear(args.width, args.width), torch.nn.SiLU())]).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(args.steps):
        x = torch.randn(args.batch, args.width, device="cuda")
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = (net(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        for state in optimizer.state.values():
            state.update({name: each.cuda() for name, each in state.items()
                          if name.startswith("exp")})
        optimizer.step()
        for state in optimizer.state.values():
            state.update({name: each.cpu() for name, each in state.items()
                          if name.startswith("exp")})
        torch.cuda.empty_cache()
        report.loss(step, loss)
    report.finish(net.parameters())


if __name__ == "__main__":
    main()
