"""A training loop in which, once its iterations are known, a CUDA graph is captured and replayed in
each further step: what the graph uses stays where it is, whatever comes and goes around it."""

import argparse

import torch

import report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--capture-at", type=int, default=10)
    args = parser.parse_args()

    torch.manual_seed(1)
    torch.set_num_threads(1)
    weights = [(torch.randn(512 + 64 * i, 512) / 64).to("cuda").requires_grad_()
               for i in range(args.layers)]
    optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
    graph, static_in, static_out = None, None, None
    for step in range(args.steps):
        x = torch.full((1, 512), 1 + step / 64).to("cuda")
        total, kept = 0, []
        for weight in weights:
            kept.append(torch.tanh(weight * x))
            total = total + kept[-1].square().mean()
        if step == args.capture_at:
            static_in = kept[-1].detach().clone()
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                static_out = ((static_in * 2 + 1).tanh() * static_in).cos()
        if graph is not None:
            static_in.copy_(kept[-1].detach())
            graph.replay()
            report.loss(-step, static_out.sum())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        report.loss(step, total)
    report.finish(weights)


if __name__ == "__main__":
    main()
