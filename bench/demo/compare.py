"""Compares the demo's three runs: prints the table and the timeline, writes summary.json and
timeline.png, and says by its status whether Firn did what it is for.

    compare.py FOLDER BUDGET STATUS   STATUS: what the run without Firn ended with
"""

import json
import pathlib
import sys

import timeline
from result import show, size_bytes


def read_json(path):
    return json.loads(path.read_text())


def end_without_firn(folder, status):
    """In words, how the capped run without Firn ended."""
    if status == 0:
        return "ran to the end"
    log = (folder / "without_firn.log").read_text(errors="replace")
    if "OutOfMemoryError: CUDA out of memory" in log:
        return "out of memory"
    return f"failed with status {status}"


def summarize(folder, budget_bytes, status):
    unlimited, firn = read_json(folder / "unlimited.json"), read_json(folder / "firn.json")
    stats = read_json(folder / "stats.json")
    if len(stats["devices"]) != 1:
        raise ValueError(f"the statistics hold {len(stats['devices'])} devices, not one")
    device, store = stats["devices"][0], stats["store"]
    same = [a == b for a, b in zip(unlimited["losses"], firn["losses"])]
    return {
        "steps": firn["steps"],
        "unlimited_peak_bytes": unlimited["peak_bytes"],
        "budget_bytes": budget_bytes,
        "without_firn": end_without_firn(folder, status),
        "bitwise_equal": len(unlimited["losses"]) == len(firn["losses"]) and all(same) and
                         unlimited["parameters_sha256"] == firn["parameters_sha256"],
        "spilled_bytes": device["spilled_bytes"],
        "faulted_bytes": device["faulted_bytes"],
        "stall_s": device["stall_s"],
        "seconds_unlimited": round(unlimited["seconds"], 3),
        "seconds_firn": round(firn["seconds"], 3),
        "gpu": firn["gpu"],
        "peak_device_bytes": device["peak_device_bytes"],
        "peak_allocated_bytes": device["peak_allocated_bytes"],
        "forwarded_bytes": device["forwarded_bytes"],
        "prefetched_bytes": device["prefetched_bytes"],
        "clean_dropped_bytes": device["clean_dropped_bytes"],
        "lost_blocks": device["lost_blocks"],
        "store": store["kind"],
        "store_written_bytes": store["written_bytes"],
        "store_read_bytes": store["read_bytes"],
        "parameters": firn["parameters"],
        "parameters_sha256": firn["parameters_sha256"],
        "last_loss": float.fromhex(firn["losses"][-1]),
    }


def print_table(summary, unlimited, firn):
    def column(run):
        return [f"{run['steps']} steps", f"{float.fromhex(run['losses'][-1]):.6f}",
                run["parameters_sha256"][:12], f"{run['seconds']:.1f} s"]

    rows = [
        ["", "unlimited", "capped", "capped, Firn"],
        ["GPU memory", show(summary["unlimited_peak_bytes"]), *2 * [show(summary["budget_bytes"])]],
        *map(list, zip(["ended", "last loss", "parameters", "seconds"], column(unlimited),
                       [summary["without_firn"], "-", "-", "-"], column(firn))),
        ["GPU memory held at most", "", "", show(summary["peak_device_bytes"])],
        ["spilled", "", "", show(summary["spilled_bytes"])],
        ["faulted back", "", "", show(summary["faulted_bytes"])],
        [f"written to files ({summary['store']})", "", "", show(summary["store_written_bytes"])],
        ["read from files", "", "", show(summary["store_read_bytes"])],
        ["waited for", "", "", f"{summary['stall_s']:.1f} s"],
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    print()
    for number, row in enumerate(rows):
        first, *others = (word.ljust(width) if i == 0 else word.rjust(width)
                          for i, (word, width) in enumerate(zip(row, widths)))
        print("  " + "   ".join([first, *others]))
        if number == 0:
            print("  " + "   ".join("-" * width for width in widths))


def shortcomings(summary):
    if summary["without_firn"] != "out of memory":
        yield f"without Firn the run did not end out of memory: it {summary['without_firn']}"
    if not summary["bitwise_equal"]:
        yield "losses or parameters differ from the unlimited run's"
    if summary["peak_device_bytes"] > summary["budget_bytes"]:
        yield "more GPU memory was held than the budget"
    if summary["lost_blocks"] > 0:
        yield f"{summary['lost_blocks']} blocks were lost"
    if summary["spilled_bytes"] == 0 or summary["faulted_bytes"] == 0:
        yield "nothing was spilled, or nothing came back"
    if summary["store_written_bytes"] == 0 or summary["store_read_bytes"] == 0:
        yield "no bytes went to a file and back"


def main():
    folder = pathlib.Path(sys.argv[1])
    summary = summarize(folder, budget_bytes=size_bytes(sys.argv[2]), status=int(sys.argv[3]))
    unlimited, firn = read_json(folder / "unlimited.json"), read_json(folder / "firn.json")
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print_table(summary, unlimited, firn)
    samples = timeline.read_samples(folder / "trace.csv")
    timeline.print_lines(samples)
    timeline.draw(samples, summary["unlimited_peak_bytes"], folder / "timeline.png")
    print("\n  build/demo/summary.json  build/demo/timeline.png")
    found = list(shortcomings(summary))
    for words in found:
        print(f"demo: {words}")
    if not found:
        print(f"demo: {summary['steps']} steps at "
              f"{summary['budget_bytes'] / summary['unlimited_peak_bytes']:.0%} of the peak: "
              "losses and parameters equal in every bit")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
