"""What most jobs here share: whole numbers by name on the command line, and a step."""

import argparse

import torch

import report


def arguments(what, **defaults):
    """The options --NAME NUMBER, with `defaults`; sets the seed of torch's generators."""
    parser = argparse.ArgumentParser(description=what)
    for name, value in {"steps": 3, "seed": 1, **defaults}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    return args


def step(number, loss, optimizer):
    """The gradients of `loss` alone, the optimizer's step, and its line."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    report.loss(number, loss)
