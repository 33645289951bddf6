#!/usr/bin/env python3
"""Processor time of an operator's call, in turn: with no recipe kept, with one kept, and where its
result is too small for one (pytorch_plugin/recipes). Kernels do nothing: what is left is the call.

  build/allocator/command/firn run --device software --watch 0 --gpu-memory 8GiB -- \\
      .venv/bin/python bench/overhead/recipe_times.py [--rounds 11] [--times 40000]

Prints JSON: {operator: {"none": [least, median], "kept": [...], "too_small": [...], "kept_more":
the median of the differences of a round, in nanoseconds}}.
"""

import argparse
import ctypes
import json
import pathlib
import statistics
import sys
import warnings

import torch
from firn import _autoload

LIBRARY = pathlib.Path(__file__).resolve().parents[2] / "build/bench/overhead/libcalls.so"
LEAST_BYTES = {"none": 0, "kept": 1 << 20, "too_small": 1 << 40}
OPERATORS = ("gelu of one tensor", "add of two tensors", "layer_norm of three, with three results")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--times", type=int, default=40_000)
    parser.add_argument("--library", type=pathlib.Path, default=LIBRARY)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.cuda.init()
    plugin = _autoload.plugin()
    if plugin is None or plugin.firn_torch_keep_recipes(1, 0):
        sys.exit("recipe_times.py: Firn is not in front of the driver: run it by firn run")
    library = ctypes.CDLL(str(options.library))
    library.kept_ns.restype = ctypes.c_double
    found = {}
    for which, name in enumerate(OPERATORS):
        rounds = {kind: [] for kind in LEAST_BYTES}
        for _ in range(options.rounds):
            for kind, least in LEAST_BYTES.items():
                plugin.firn_torch_keep_recipes(least, 0)
                rounds[kind].append(library.kept_ns(ctypes.c_int64(which),
                                                    ctypes.c_int64(options.times)))
        found[name] = {kind: [round(min(ns), 1), round(statistics.median(ns), 1)]
                       for kind, ns in rounds.items()}
        found[name]["kept_more"] = round(statistics.median(
            kept - none for kept, none in zip(rounds["kept"], rounds["none"])), 1)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
