#!/usr/bin/env python3
"""One case of frees.cpp: on a real driver alone, where cuMemFree waits; with Firn, where it does
not; and with Firn told to wait. The budget is 64 MiB, and nothing may leave the GPU for want of
memory that was freed.

run_frees.py PRELOAD_LIBRARY PROGRAM KERNELS CASE
Environment: FIRN_TEST_GPU is the software GPU; without it the machine's own driver serves.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile


def run(command, word, environment):
    ran = subprocess.run([*command, word], env=environment, capture_output=True, text=True,
                         timeout=120)
    if ran.returncode != 0:
        sys.exit("status %d (%s)\n%s%s" % (ran.returncode, word, ran.stdout, ran.stderr))


def main():
    library, program, kernels, case = sys.argv[1:]
    command = [program, kernels, case]
    alone = {k: v for k, v in os.environ.items()
             if not k.startswith("FIRN_") and k not in ("LD_PRELOAD", "PYTORCH_CUDA_ALLOC_CONF")}
    software = os.environ.get("FIRN_TEST_GPU")
    if software:
        alone["LD_LIBRARY_PATH"] = str(pathlib.Path(software).parent)
        alone["FIRN_GPU_MEMORY"] = "1GiB"
    else:  # (The software GPU's own cuMemFree waits only for work that it knows to use the memory.)
        run(command, "waits", alone)
    for waits in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            stats_file = pathlib.Path(folder) / "stats.json"
            with_firn = dict(alone, LD_PRELOAD=library, FIRN_BUDGET="64MiB", FIRN_HOST="64MiB",
                             FIRN_STATS=str(stats_file), FIRN_FREE_WAITS=str(int(waits)))
            if software:
                with_firn["FIRN_DEVICE"] = "software"
            run(command, "waits" if waits else "ahead", with_firn)
            stats = json.loads(stats_file.read_text())
        device, coverage = stats["devices"][0], stats["coverage"]
        told = {key: device[key] for key in ("peak_device_bytes", "spilled_bytes",
                                             "zero_copy_bytes")}
        told.update({key: coverage[key] for key in ("frees_waited", "frees_deferred")})
        print(case, "waits" if waits else "ahead", told)
        if device["spilled_bytes"] or device["zero_copy_bytes"]:
            sys.exit("something left the GPU, or was never there")
        if device["peak_device_bytes"] > 64 << 20:
            sys.exit("more than the budget was held")
        if waits and coverage["frees_deferred"]:
            sys.exit("a free that was to wait did not")
        # (The first one of the process, those behind copies of the case's own, from and to the
        # host, and the one in another context.)
        if not waits and coverage["frees_waited"] > 3:
            sys.exit("frees waited")


if __name__ == "__main__":
    main()
