#!/usr/bin/env python3
"""bench/README.md's table of what was seen on GPUs: a row for each step of bench/gpu/run.sh, from
the newest full run's results in bench/results/; "not yet seen on a GPU" where there are none.

    bench/gpu/table.py [FOLDER]     [bench/results]
"""

import json
import pathlib
import sys

import suite

NOT_SEEN = "not yet seen on a GPU"


def newest(folder):
    """{step: (row, whole)} of the newest run on a GPU in which the step was reached."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        whole = json.loads(path.read_text())
        if whole.get("suite") != "bench/gpu" or whole["device"] == "software":
            continue
        for row in whole["steps"]:
            old = found.get(row["name"])
            if row["status"] in ("passed", "failed", "cut") and (
                    old is None or old[1]["begun"] < whole["begun"]):
                found[row["name"]] = (row, whole)
    return found


def words(row, whole):
    checks = row["checks"]
    told = row["status"]
    if checks:
        told += f", {sum(check['ok'] for check in checks)} of {len(checks)} checks"
    if row["why"]:
        told += f" ({row['why'].strip('; ')})"
    gpu = (whole["machine"].get("gpus") or [{}])[0]
    return f"{told}; {gpu.get('name', 'a GPU')}, {whole['begun'][:10]}".replace("|", "/")


def table(folder):
    found = newest(folder)
    lines = ["| step of `bench/gpu/run.sh` | what | on a GPU |", "|---|---|---|"]
    for name, title, _, _ in suite.STEPS:
        if name not in suite.ALWAYS:
            seen = words(*found[name]) if name in found else NOT_SEEN
            lines.append(f"| `{name}` | {title} | {seen} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(sys.argv[1] if len(sys.argv) > 1 else suite.ROOT / "bench/results"))
