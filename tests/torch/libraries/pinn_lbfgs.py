"""A network that solves a heat equation, by second derivatives and LBFGS."""

import torch

import job
import report


def derivative(of, by):
    (slope,) = torch.autograd.grad(of.sum(), by, create_graph=True)
    return slope


def main():
    args = job.arguments(__doc__, width=256, points=2048, layers=4)
    layers = [torch.nn.Linear(2, args.width)]
    for _ in range(args.layers):
        layers += [torch.nn.Tanh(), torch.nn.Linear(args.width, args.width)]
    net = torch.nn.Sequential(*layers, torch.nn.Tanh(), torch.nn.Linear(args.width, 1)).cuda()
    place, time = (torch.rand(args.points, 1, device="cuda", requires_grad=True) for _ in range(2))
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3, history_size=6,
                                  line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        u = net(torch.cat([place, time], 1))
        inside = derivative(u, time) - .1 * derivative(derivative(u, place), place)
        start = net(torch.cat([place, torch.zeros_like(time)], 1)) - torch.sin(3.14 * place)
        loss = inside.square().mean() + start.square().mean()
        loss.backward()
        return loss

    for step in range(args.steps):
        report.loss(step, optimizer.step(closure))
    report.finish(net.parameters())


if __name__ == "__main__":
    main()
