#!/usr/bin/env python3
"""One program with Firn at half of its memory, again and again: the driver refuses everything from
the nth call on, or the nth call alone. Each run ends at once, by itself, with the driver's name of
the error or with the right bits; no spill file is left.

run_refused.py PRELOAD_LIBRARY PROGRAM KERNELS
Environment: FIRN_TEST_GPU is the software GPU; FIRN_TEST_LENGTH.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

ERRORS = {700: "CUDA_ERROR_ILLEGAL_ADDRESS", 710: "CUDA_ERROR_ASSERT",
          719: "CUDA_ERROR_LAUNCH_FAILED", 2: "CUDA_ERROR_OUT_OF_MEMORY", 999: "CUDA_ERROR_UNKNOWN"}
STAYS = "could not be looked at"  # why memory stays, in what Firn says of out of memory
MOST = 4000  # calls; later ones are of the same kinds
SECONDS = 60  # what takes longer hangs
SLOWER = 10  # seconds that a run may take beyond what it takes where nothing is refused


def run(command, environment, spill=None):
    begin = time.monotonic()
    process = subprocess.Popen(command, env=environment, text=True, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        errors += "\nkilled: it hung"
    left = sorted(path.name for path in spill.iterdir()) if spill else []
    found = re.search(r"digest ([0-9a-f]+) bytes (\d+)", output)
    return process.returncode, found, errors, time.monotonic() - begin, left


def tried(length, once):
    """(n, error): each n at first, then some, of one call alone a quarter of them; every error of
    each in a long run, else in turn."""
    n, turn = 1, 0
    while n < MOST:
        for error in list(ERRORS) if length == "long" else [list(ERRORS)[turn % len(ERRORS)]]:
            yield n, error
        turn += 1
        step = 1 if n < 60 else 1 + n // 6
        n += step * (1 if length == "long" else 4 if once or length == "quick" else 1)


def wrong_with(status, found, errors, seconds, left, error, once, digest, usual):
    """What should not have been, or None."""
    if status < 0:
        return "ended by " + signal.Signals(-status).name
    if left:
        return "left behind: %s" % left
    if seconds > usual + SLOWER:
        return "%.1f s" % seconds
    if status == 0:
        return None if found and found.group(1) == digest else "other bits"
    if once and STAYS in errors:
        return "one refusal keeps memory on the device"
    return None if ERRORS[error] in errors else "not the driver's words"


def main():
    library, program, kernels = sys.argv[1:]
    software = pathlib.Path(os.environ["FIRN_TEST_GPU"])
    alone = {name: value for name, value in os.environ.items()
             if not name.startswith(("FIRN_", "PYTORCH_")) and name != "LD_PRELOAD"}
    alone.update(LD_LIBRARY_PATH=str(software.parent), FIRN_GPU_MEMORY="2GiB")
    status, found, errors, usual, _ = run([program, kernels], alone)
    if status != 0 or not found:
        sys.exit("status %d\n%s" % (status, errors))
    digest, needed = found.group(1), int(found.group(2))
    wrong, felt = [], {}
    with tempfile.TemporaryDirectory(dir=pathlib.Path(program).parent) as folder:
        spill = pathlib.Path(folder)
        firn = dict(alone, LD_PRELOAD=library, FIRN_DEVICE="software", FIRN_HOST="16MiB",
                    FIRN_DIR=folder, FIRN_BUDGET=str(needed // 2 // (2 << 20) * (2 << 20)))
        status, found, errors, usual, left = run([program, kernels], firn, spill)
        if status != 0 or not found or found.group(1) != digest or left:
            sys.exit("nothing refused: status %d, left %s\n%s" % (status, left, errors))
        length = os.environ.get("FIRN_TEST_LENGTH", "normal")
        for when, once in ("+", False), ("", True):
            felt[when] = []
            for n, error in tried(length, once):
                words = "*:%d%s:%d" % (n, when, error)
                ended = run([program, kernels], dict(firn, FIRN_GPU_FAIL=words), spill)
                felt[when].append(ended[0] != 0)
                why = wrong_with(*ended, error, once, digest, usual)
                if why:
                    wrong.append("FIRN_GPU_FAIL=%s: status %d: %s\n%s" %
                                 (words, ended[0], why, ended[2][-800:]))
    for when, words in ("+", "from then on"), ("", "once"):
        print("%d runs refused %s, %d ended with an error" %
              (len(felt[when]), words, sum(felt[when])))
    print("%d wrong" % len(wrong))
    print("\n".join(wrong[:20]))
    if sum(felt["+"]) < len(felt["+"]) // 2 or not any(felt[""]):
        wrong.append("the refusals were not felt")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
