"""The command line of the jobs here: whole numbers by name, and a seed."""

import argparse

import torch


def arguments(what, **defaults):
    """The options --NAME NUMBER, with `defaults`; sets the seed of torch's generators."""
    parser = argparse.ArgumentParser(description=what)
    for name, value in {"steps": 3, "seed": 1, **defaults}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    return args
