#!/usr/bin/env python3
"""The program gemm, one of whose launches uses more than the budget: it is run in host memory at
device addresses where that can be had. Where it cannot, the launch is refused, and stderr says once
what happened, why, and which knob changes it; so it does where an allocation is refused.

run_too_large.py PRELOAD_LIBRARY PROGRAM KERNELS
Environment: FIRN_TEST_GPU is the software GPU.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import types

import run_program

BUDGET = "10MiB"  # a launch uses 18 MiB
SMALL = {"FIRN_BUDGET": "16MiB", "FIRN_HOST": "16MiB"}  # of 64 MiB that vector allocates


def is_said_once(name, done, what, words):
    said = [line for line in done.stderr.splitlines() if what in line]
    print(name, done.returncode, said)
    if done.returncode == 0 or len(said) != 1:
        sys.exit("%s: status %d\n%s" % (name, done.returncode, done.stderr))
    for each in words:
        if each not in said[0]:
            sys.exit("%s: not said: %s\n%s" % (name, each, said[0]))


def main():
    library, program, kernels = sys.argv[1:]
    options = types.SimpleNamespace(program=program, kernels=kernels, devices=1, more=[])
    environment = run_program.clean_environment(options)
    digest, _, _ = run_program.run(options, environment)
    environment.update(FIRN_DEVICE="software", FIRN_BUDGET=BUDGET, FIRN_HOST="128MiB")
    mine, _, _ = run_program.run(options, dict(environment, LD_PRELOAD=library))
    if mine != digest:
        sys.exit("digest %s, on the driver alone %s" % (mine, digest))
    with tempfile.TemporaryDirectory() as folder:
        alone = pathlib.Path(folder) / pathlib.Path(library).name  # nothing to try host memory with
        for each in pathlib.Path(library).parent.glob("libfirn*.so"):
            shutil.copy(each, folder)
        for name, more, why in (
                ("none", {"FIRN_GPU_HOST_NUMA": "none"}, "the driver lacks support"),
                ("fails", {"FIRN_GPU_HOST_NUMA": "fail"}, "the driver refuses memory of NUMA node"),
                ("no program to try it", {"LD_PRELOAD": str(alone)}, "firn-try-host")):
            done = subprocess.run([program, kernels], capture_output=True, text=True, timeout=300,
                                  env={**environment, "LD_PRELOAD": library, **more})
            is_said_once(name, done, "one launch or copy uses",
                         ("firn_budget", "within the budget of 10MiB", why))
    small = {**environment, "LD_PRELOAD": library, "FIRN_GPU_HOST_NUMA": "none", **SMALL}
    vector = pathlib.Path(program).with_name("program_vector")
    done = subprocess.run([vector, kernels], capture_output=True, text=True, timeout=300, env=small)
    is_said_once("allocation", done, "an allocation failed",
                 ("firn_budget", "firn_host", "firn_dir"))


if __name__ == "__main__":
    main()
