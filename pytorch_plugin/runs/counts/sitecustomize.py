"""Put in front of PYTHONPATH by script_runs.py: at the end of the process that imported this, writes the
software GPU's own counts to the file that TEST_COUNTS_FILE names. Forked children write nothing.
The sitecustomize module that this one hides is run too."""

import atexit
import importlib.machinery
import importlib.util
import json
import os
import sys

import software_counts


def write_counts(path, owner):
    if os.getpid() != owner:
        return
    found = software_counts.read()
    if found is not None:
        with open(path, "w") as file:
            json.dump(found, file)


if "TEST_COUNTS_FILE" in os.environ and "LD_PRELOAD" in os.environ:
    # Children that are started afresh (not forked) are not the process that is counted.
    atexit.register(write_counts, os.environ.pop("TEST_COUNTS_FILE"), os.getpid())


def run_hidden():
    here = os.path.dirname(os.path.abspath(__file__))
    others = [each for each in sys.path if os.path.abspath(each) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


run_hidden()
