#!/usr/bin/env python3
"""Steps of the demo's GPT whose layers are computed again, by the relay and by torch.utils.checkpoint, in one
process and in turn, on the CPU: what the relay's Python costs where everything fits.

  bench/overhead/relay_times.py [--rounds 30] [--width 256] [--layers 8] [--rows 8] [--length 128]

Each round makes a step of each way, in an order that changes; the ways are plain, checkpoint
(use_reentrant=False around each layer), and relay (FIRN_RELAY's, with one micro-batch and with
two). Prints the median of the rounds' ratios to checkpoint's step, and their quartiles.
"""

import argparse
import pathlib
import random
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "pytorch_plugin"), str(ROOT / "bench/demo")]

import torch  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import train_gpt  # noqa: E402
from firn.relay.doors import Doors  # noqa: E402

WARM = 3  # rounds that are not counted: the relay's first step is plain


class Job:
    """One model with its optimizer."""

    def __init__(self, args, way):
        torch.manual_seed(1)
        self.model = train_gpt.Gpt(args.layers, args.width, 4, args.length)
        if way == "checkpoint":
            for block in self.model.layers:
                block.forward = self._recomputed(block.forward)
        doors = Doors(int(way.partition(" ")[2])) if way.startswith("relay") else None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.words = torch.randint(256, (args.rows, args.length))
        self.step()
        if doors is not None:
            doors.shut()  # (the other ways have no relay)

    @staticmethod
    def _recomputed(forward):
        return lambda value: checkpoint(forward, value, use_reentrant=False)

    def step(self):
        begin = time.perf_counter()
        loss = functional.cross_entropy(self.model(self.words).view(-1, 256), self.words.view(-1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, value in (("rounds", 30), ("width", 256), ("layers", 8), ("rows", 8),
                        ("length", 128)):
        parser.add_argument("--" + name, type=int, default=value)
    args = parser.parse_args()
    torch.set_num_threads(1)
    jobs = {way: Job(args, way) for way in ("plain", "checkpoint", "relay 1", "relay 2")}
    order, rounds = list(jobs), []
    for number in range(WARM + args.rounds):
        random.Random(number).shuffle(order)
        times = {way: jobs[way].step() for way in order}
        if number >= WARM:
            rounds.append(times)
    for way in jobs:
        first, median, third = statistics.quantiles(
            [each[way] / each["checkpoint"] for each in rounds], n=4)
        step = statistics.median(each[way] for each in rounds)
        print(f"{way}: {median:.3f} ({first:.3f} to {third:.3f}) of checkpoint's step, "
              f"{step * 1000:.1f} ms")


if __name__ == "__main__":
    main()
