"""Learning to learn by torch.func: each task's own step inside the step over tasks, by vmap."""

import torch
from torch.func import functional_call, grad, vmap

import job
import report


def main():
    args = job.arguments(__doc__, width=768, tasks=24, points=64)
    net = torch.nn.Sequential(
        torch.nn.Linear(64, args.width), torch.nn.Tanh(), torch.nn.Linear(args.width, args.width),
        torch.nn.Tanh(), torch.nn.Linear(args.width, 8)).cuda()
    parameters = {name: each.detach().clone().requires_grad_()
                  for name, each in net.named_parameters()}
    optimizer = torch.optim.Adam(parameters.values(), lr=1e-3)

    def error(weights, x, y):
        return (functional_call(net, weights, (x,)) - y).square().mean()

    def after_a_step(weights, x, y, seen, wanted):
        slopes = grad(error)(weights, x, y)
        moved = {name: weights[name] - .1 * slopes[name] for name in weights}
        return error(moved, seen, wanted)

    for step in range(args.steps):
        x, y, seen, wanted = (torch.randn(args.tasks, args.points, size, device="cuda")
                              for size in (64, 8, 64, 8))
        loss = vmap(after_a_step, in_dims=(None, 0, 0, 0, 0))(parameters, x, y, seen, wanted).mean()
        job.step(step, loss, optimizer)
    report.finish(parameters.values())


if __name__ == "__main__":
    main()
