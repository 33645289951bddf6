"""Runs a program with the deterministic kernels that PyTorch has: `deterministic.py PROGRAM WORDS...`.
So two runs of it have the same bits, unless an operator has no such kernel."""

import os
import runpy
import sys
import warnings

import torch


def main():
    warnings.filterwarnings("ignore", message=".*deterministic.*")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    del sys.argv[0]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
