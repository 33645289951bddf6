#!/usr/bin/env python3
"""One program, four times: on the driver alone; with Firn and memory enough; at half of the memory
that it said it needs; and with all spilled after every release. The same bits each time, and
something moved where it had to.

run_program.py PRELOAD_LIBRARY PROGRAM KERNELS [--expect-pinned WORDS] [--expect-said WORDS]
               [--expect-prefetched] [--devices N] [--without-layouts] [--by-images] [--look-always]
               [--same-words] [--plenty]
Environment: FIRN_TEST_GPU is the software GPU; without it the machine's own driver serves.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile


def clean_environment(options):
    environment = {k: v for k, v in os.environ.items()
                   if not k.startswith("FIRN_") and k not in ("LD_PRELOAD",
                                                               "PYTORCH_CUDA_ALLOC_CONF")}
    software = os.environ.get("FIRN_TEST_GPU")
    if software:
        folder = str(pathlib.Path(software).parent)
        environment["LD_LIBRARY_PATH"] = folder
        environment["FIRN_GPU_MEMORY"] = "2GiB"
        environment["FIRN_GPU_DEVICES"] = str(options.devices)
    return environment


def run(options, environment):
    ran = subprocess.run([options.program, options.kernels, *options.more], env=environment,
                         capture_output=True, text=True, timeout=300)
    found = re.search(r"digest ([0-9a-f]+) bytes (\d+)", ran.stdout)
    if ran.returncode != 0 or not found:
        sys.exit("status %d\n%s%s" % (ran.returncode, ran.stdout, ran.stderr))
    return found.group(1), int(found.group(2)), ran


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("program")
    parser.add_argument("kernels")
    parser.add_argument("--expect-pinned")
    parser.add_argument("--expect-said")
    parser.add_argument("--expect-prefetched", action="store_true",
                        help="by hints: without them blocks only leave by age, and come when used")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--without-layouts", action="store_true",
                        help="as on a driver that does not tell kernels' parameters")
    parser.add_argument("--by-images", action="store_true",
                        help="nor needs to, for the kernels' images do")
    parser.add_argument("--look-always", action="store_true",
                        help="at what every launch wrote, not only each kernel's first ones")
    parser.add_argument("--plenty", action="store_true", help="only with memory enough")
    parser.add_argument("--same-words", action="store_true",
                        help="what it prints is compared; nothing need move")
    options = parser.parse_args()
    options.more = []
    environment = clean_environment(options)
    digest, needed, alone = run(options, environment)
    for mode in ("plenty",) if options.plenty else ("plenty", "half", "adversarial"):
        with tempfile.TemporaryDirectory() as folder:
            stats_file = pathlib.Path(folder) / "stats.json"
            with_firn = dict(environment, LD_PRELOAD=options.library,
                             FIRN_STATS=str(stats_file), FIRN_HOST="512MiB",
                             FIRN_BUDGET=str(needed // 2 // (2 << 20) * (2 << 20)))
            if mode == "plenty" or options.same_words:
                with_firn["FIRN_BUDGET"] = str(needed * 3)
            if options.expect_prefetched:
                with_firn["FIRN_POLICY"] = "age"
            if options.look_always:
                with_firn["FIRN_LOOKS"] = "all"
            if options.without_layouts or options.by_images:
                with_firn["FIRN_TEST_LAYOUTS"] = "0"
            if mode == "adversarial":
                with_firn["FIRN_TEST_ADVERSARIAL"] = "1"
            if os.environ.get("FIRN_TEST_GPU"):
                with_firn["FIRN_DEVICE"] = "software"
            mine, _, ran = run(options, with_firn)
            said = ran.stderr
            if not stats_file.exists():
                sys.exit("no statistics were written: Firn was not there\n" + said)
            stats = json.loads(stats_file.read_text())
        devices = stats["devices"]
        summary = [{key: device[key] for key in ("budget_bytes", "peak_device_bytes",
                                                 "spilled_bytes", "faulted_bytes", "touches",
                                                 "zero_copy_bytes", "pinned", "unseen")}
                   for device in devices]
        print(json.dumps({"mode": mode, "devices": summary}, indent=1))
        print(said, end="")
        if options.expect_said and options.expect_said not in said:
            sys.exit("not said: %s" % options.expect_said)
        if options.by_images and stats["coverage"]["unknown_kernels"]:
            sys.exit("%d launches of unknown kernels" % stats["coverage"]["unknown_kernels"])
        if options.same_words:
            words, others = ([line for line in each.stdout.splitlines() if line[0] != "~"]
                             for each in (alone, ran))
            differ = [(a, b) for a, b in zip(words, others) if a != b]
            if words != others:
                sys.exit("answered otherwise than by the driver alone: %s" % differ)
            continue
        if mine != digest:
            sys.exit("digest %s, on the driver alone %s" % (mine, digest))
        if len(devices) != options.devices:
            sys.exit("%d devices" % len(devices))
        if mode == "plenty":
            # Nothing is done about memory that fits.
            moved = sum(device["spilled_bytes"] for device in devices)
            if moved or stats["coverage"]["looked_at_bytes"]:
                sys.exit("moved %d, looked at %d" % (moved, stats["coverage"]["looked_at_bytes"]))
            continue
        for device in devices:
            if device["spilled_bytes"] == 0 or device["faulted_bytes"] == 0:
                sys.exit("nothing was spilled")
            if options.expect_prefetched and mode == "half" and device["prefetched_bytes"] == 0:
                sys.exit("nothing was prefetched")
            if device["peak_device_bytes"] > device["budget_bytes"]:
                sys.exit("more than the budget was held")
            if options.without_layouts and not any("does not report" in words
                                                   for words in device["unseen"]):
                sys.exit("nothing is said of unknown kernels: %s" % device["unseen"])
        reasons = {pin["reason"] for device in devices for pin in device["pinned"]}
        if options.expect_pinned and options.expect_pinned not in reasons:
            sys.exit("not pinned: %s; but %s" % (options.expect_pinned, reasons))
    return 0


if __name__ == "__main__":
    sys.exit(main())
