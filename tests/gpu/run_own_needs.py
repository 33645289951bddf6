#!/usr/bin/env python3
"""The program own_needs: on the driver alone, with memory enough; and with Firn on a device that its
blocks fill twice over, whose driver takes memory for itself. The same bits, and stderr says who made
room.

run_own_needs.py PRELOAD_LIBRARY PROGRAM KERNELS
Environment: FIRN_TEST_GPU is the software GPU.
"""

import sys
import types

import run_program

OWN = "module:6MiB,launch:6MiB,stream:2MiB,graph:6MiB"


def main():
    library, program, kernels = sys.argv[1:]
    options = types.SimpleNamespace(program=program, kernels=kernels, devices=1, more=[])
    environment = run_program.clean_environment(options)
    environment["FIRN_GPU_OWN"] = OWN
    digest, _, _ = run_program.run(options, environment)
    options.more = ["told"]
    mine, _, ran = run_program.run(options, dict(
        environment, LD_PRELOAD=library, FIRN_DEVICE="software", FIRN_GPU_MEMORY="512MiB",
        FIRN_HOST="768MiB"))
    print(ran.stderr, end="")
    if mine != digest:
        sys.exit("digest %s, on the driver alone %s" % (mine, digest))


if __name__ == "__main__":
    main()
