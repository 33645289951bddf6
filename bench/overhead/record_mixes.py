#!/usr/bin/env python3
"""Records mixes/*.csv: what ordinary training allocates and frees, for mixes.py to read. Programs
run on the software GPU, where all of each fits.

  bench/overhead/record_mixes.py [NAME...]
"""

import pathlib
import subprocess
import sys
import tempfile

import mixes
from in_turn import DEMO, ROOT, script_runs

STEPS = 2
PROGRAMS = {
    "gpt": (DEMO, "--steps", STEPS),
    "convnet": (script_runs.SCRIPTS / "convnet_bn_sgd_checkpoint.py", "--steps", STEPS),
    "streams": (script_runs.SCRIPTS / "side_streams.py",),
}


def record(paths, name, words):
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        trace = pathlib.Path(folder) / "trace.csv"
        command = script_runs.firn_command(paths, pathlib.Path(folder), *map(str, words),
                                           budget="7GiB", options=("--trace", trace))
        subprocess.run(list(map(str, command)), env=script_runs.clean_environment(), check=True,
                       stdout=subprocess.DEVNULL)
        with open(trace, encoding="utf-8") as rows:
            kept = [next(rows)] + [row for row in rows if row.split(",")[1] in ("alloc", "free")]
    (mixes.FOLDER / f"{name}.csv").write_text("".join(kept), encoding="utf-8")
    print(f"{name}: {len(kept) - 1} events")


def main():
    paths = script_runs.Paths.find()
    if isinstance(paths, str):
        sys.exit(f"record_mixes.py: {paths}")
    mixes.FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PROGRAMS:
        record(paths, name, PROGRAMS[name])


if __name__ == "__main__":
    main()
