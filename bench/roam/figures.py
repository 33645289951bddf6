#!/usr/bin/env python3
"""ROAM's table again: figures.py [--firn FIRN] [--only WORD] [--keep DIR] [--plot FILE.png]

Captures every training step of the table (capture.py), orders it and lays it out with `firn order`,
checks both (bench/order/check.py), and prints one line for each: in ROAM's convention, where Adam's
m and v are made in the step, and with both persistent. MiB of all that is alive, weights included.
"""

import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import inductor  # noqa: E402

ROOT = HERE.parents[1]
spec = importlib.util.spec_from_file_location("order_check", ROOT / "bench" / "order" / "check.py")
check = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check)

# ROAM's MiB and seconds by batch, as published.
ROAM = {
    "alexnet": {1: (665, 2), 32: (665, 3)},
    "vgg11": {1: (1683, 3), 32: (2045, 3)},
    "mnasnet0_5": {1: (34, 27), 32: (791, 27)},
    "mobilenet_v2": {1: (69, 28), 32: (1670, 29)},
    "efficientnet_b0": {1: (108, 379), 32: (2723, 460)},
    "vit_b_16": {1: (483, 86), 32: (4670, 84)},
    "roberta": {1: (915, 221), 32: (915, 472)},
    "gpt2_xl": {1: (19243, 330), 2: (32468, 330), 4: (58995, 330)},
}
# Torch's maths attention is what fits ROAM's figure here; softmax((q k^T) scale) v elsewhere.
MATHS = [("vit_b_16", 1, False)]
MIB = 1 << 20


def rows(only):
    for name, batches in ROAM.items():
        for batch, published in batches.items():
            for persistent in (False, True):
                title = f"{name} {batch}" + (" persistent" if persistent else "")
                if only in title:
                    yield name, batch, persistent, title, published


def captured(name, batch, persistent, folder):
    prefix = folder / f"{name}-{batch}{'-persistent' if persistent else ''}"
    if not pathlib.Path(f"{prefix}.ops.csv").exists():
        words = [sys.executable, HERE / "capture.py", name, str(batch), prefix]
        words += ["--persistent"] if persistent else []
        words += ["--scaled-attention"] if (name, batch, persistent) not in MATHS else []
        subprocess.run([str(word) for word in words], check=True)
    return prefix


def planned(firn, prefix):
    """`firn order`'s findings, checked; the order."""
    out = f"{prefix}.out"
    result = subprocess.run([firn, "order", str(prefix), "-o", out, "--json"], check=True,
                            capture_output=True, text=True)
    found = json.loads(result.stdout)
    reached = check.check(prefix, out)
    if reached != (found["peak_program_order"], found["peak"], found["height"]):
        raise SystemExit(f"figures.py: {prefix}: found {found}, checked {reached}")
    return found, [row["op"] for row in check.rows_of(f"{out}.order.csv")]


def line(title, found, inductor_peak, published, persistent):
    height, bound = found["height"], found["bound"]
    roam = ("", "") if persistent else (f"{published[0]}", f"{published[1]}")
    cells = [title, found["operators"], *(f"{bytes / MIB:.1f}" for bytes in (
        found["peak_program_order"], inductor_peak, found["peak"], bound, height))]
    cells += [f"{100 * (height / bound - 1):.3f}", f"{100 * (height / found['peak'] - 1):.3f}",
              f"{found['seconds']:.2f}", *roam]
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def plot(path, profiles):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = 4
    lines = (len(profiles) + columns - 1) // columns
    figure, axes = pyplot.subplots(lines, columns, figsize=(4.2 * columns, 2.6 * lines),
                                   squeeze=False)
    for axis in axes.flat[len(profiles):]:
        axis.axis("off")
    for axis, (title, program, order, bound) in zip(axes.flat, profiles):
        axis.plot([each / MIB for each in program], linewidth=0.8, label="program order")
        axis.plot([each / MIB for each in order], linewidth=0.8, label="firn order")
        axis.axhline(bound / MIB, linewidth=0.6, color="grey", linestyle=":", label="bound")
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.set_ylim(bottom=0)
    axes.flat[0].legend(fontsize=7)
    figure.supxlabel("operator", fontsize=9)
    figure.supylabel("MiB alive", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--firn", default=str(ROOT / ".venv" / "bin" / "firn"))
    parser.add_argument("--only", default="", help="rows that have this in their name")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the graphs, used again")
    parser.add_argument("--plot", help="memory over the step, before and after")
    given = parser.parse_args()
    profiles = []
    print("| step | operators | program order | Inductor's | firn | bound | height | height over "
          "bound, % | height over peak, % | s | ROAM | ROAM's s |")
    print("|---|" + "---|" * 11)
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name, batch, persistent, title, published in rows(given.only):
            prefix = captured(name, batch, persistent, folder)
            found, order = planned(given.firn, prefix)
            graph = check.Graph(prefix)
            inductor_peak = max(graph.profile(inductor.reordered(graph)))
            line(title, found, inductor_peak, published, persistent)
            profiles.append((title, graph.profile(graph.program), graph.profile(order),
                             found["bound"]))
    if given.plot and profiles:
        plot(given.plot, profiles)


if __name__ == "__main__":
    main()
