"""Runs a training script in which everything that can be made again is spoiled and made again
before each use: its bits are those of a run without that, or a recipe stood that should not have.

    PYTORCH_CUDA_ALLOC_CONF=backend:firn python always.py SCRIPT [ARGUMENT...]

The last line is JSON: {"kept": recipes, "made_again": {operator: times}}.
"""

import json
import pathlib
import runpy
import sys

import firn_recipes


def main():
    assert firn_recipes.keep(), "Firn is not in front of the driver"
    firn_recipes.library().firn_torch_always_make_again(1)
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        firn_recipes.library().firn_torch_always_make_again(0)
    listed = firn_recipes.listed()
    print("# " + json.dumps({"kept": sum(about[2] for about in listed.values()),
                             "made_again": {name: about[3] for name, about in listed.items()
                                            if about[3]}}), flush=True)


if __name__ == "__main__":
    main()
