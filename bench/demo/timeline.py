"""Where the bytes were over time: on the device, in host memory, on NVMe. Read from the `sample`
rows of a trace; drawn with matplotlib, and with characters for the terminal."""

import csv
import dataclasses

TIERS = [("resident", "on the device"), ("hosted", "in host memory"), ("nvme", "on NVMe")]
LEVELS = " ▁▂▃▄▅▆▇█"
MIB = 1 << 20


@dataclasses.dataclass
class Sample:
    seconds: float
    bytes: dict  # of TIERS and "budget"


def read_samples(path):
    """The samples of the trace's first device, with times from the first on."""
    samples = []
    with open(path, newline="") as file:
        for row in csv.DictReader(file):
            if row["event"] != "sample" or row["device"] != "0":
                continue
            detail = dict(pair.split("=") for pair in row["detail"].split(";"))
            samples.append(Sample(int(row["time_ns"]) / 1e9,
                                  {name: int(detail[name])
                                   for name in ("resident", "hosted", "nvme", "budget")}))
    if len(samples) < 2:
        raise ValueError(f"{path} holds {len(samples)} samples: no timeline")
    begin = samples[0].seconds
    for sample in samples:
        sample.seconds -= begin
    return samples


def print_lines(samples, columns=72):
    """One line per tier: each column is the most that the tier held in that stretch of time."""
    whole = samples[-1].seconds or 1e-9
    print(f"\n  memory over {whole:.0f} s")
    for tier, words in TIERS:
        most = [None] * columns
        for sample in samples:
            at = min(int(sample.seconds / whole * columns), columns - 1)
            most[at] = max(most[at] or 0, sample.bytes[tier])
        for at in range(1, columns):  # a stretch without a sample is as the one before it
            if most[at] is None:
                most[at] = most[at - 1]
        top = max(most)
        line = "".join(LEVELS[-(-value * (len(LEVELS) - 1) // top) if top else 0] for value in most)
        print(f"  {words:>14} {line} {top / MIB:.0f} MiB")


def draw(samples, unlimited_peak_bytes, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    seconds = [sample.seconds for sample in samples]
    figure, axes = pyplot.subplots(figsize=(10, 4.5))
    heights = [[sample.bytes[tier] / MIB for sample in samples] for tier, _ in TIERS]
    axes.stackplot(seconds, *heights,
                   labels=[words for _, words in TIERS], step="post",
                   colors=["#2f6f9f", "#8fb8d8", "#d9dde3"])
    axes.axhline(samples[-1].bytes["budget"] / MIB, color="black", linewidth=1, label="budget")
    axes.axhline(unlimited_peak_bytes / MIB, color="black", linewidth=1, linestyle="--",
                 label="peak of the unlimited run")
    axes.set_xlabel("seconds")
    axes.set_ylabel("MiB (a block with copies in two tiers counts in both)")
    axes.set_xlim(0, seconds[-1])
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", framealpha=0.9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
