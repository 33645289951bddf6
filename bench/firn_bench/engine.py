"""The engine alone, by Google Benchmark: its hot paths, and blocks that leave and come back."""

from __future__ import annotations

import re

from firn_bench.context import BUILD, SOFTWARE, Context
from firn_bench.figures import Figure, median_of

CURVES = {"pair": "a pair", "pair_beside": "a pair beside live blocks",
          "among_live": "one of live blocks", "look_ups": "one of live blocks",
          "touch": "touch and release, one of so many blocks",
          "touch_small": "touch and release, one of so many blocks",
          "touch_many": "touch and release of so many blocks at once"}
LINES = {"look_ups": "the look-ups alone", "touch_small": "small ones, by their segments"}


def _at(name: str) -> tuple[str, float, str]:
    """("pair", 512, "4 threads") of pair/bytes:512/threads:4."""
    what, *words = name.split("/")
    values = dict(word.split(":", 1) for word in words if ":" in word)
    threads = values.pop("threads", "1")
    return what, float(next(iter(values.values()), 0)), \
        f", {threads} threads" if threads != "1" else ""


def engine(context: Context) -> list[Figure]:
    """The engine's hot paths: allocate and free, touch and release (Google Benchmark)."""
    figures = []
    for name, times in context.google(BUILD / "bench/engine/engine_bench",
                                      FIRN_TEST_GPU=str(SOFTWARE)).items():
        what, x, threads = _at(name)
        figures.append(median_of("engine", name, "ns", [each["real_time"] for each in times],
                                 curve="" if threads else CURVES.get(what, what), x=x,
                                 line=LINES.get(what, "Firn")))
    return figures


def moving(context: Context) -> list[Figure]:
    """What it takes to send a block away and to have it back, against its size."""
    figures = []
    for name, times in context.google(BUILD / "bench/engine/moving_bench", str(context.folder),
                                      FIRN_TEST_GPU=str(SOFTWARE)).items():
        what, x, _ = _at(name)
        words = what.replace("_", " ")
        figures.append(median_of(
            "moving", f"{words}, {x / (1 << 20):.0f} MiB", "us",
            [each["real_time"] / 1e3 for each in times], x=x,
            curve=re.sub(r"^(spill|fault).*", r"\1: us", words), line=words))
    return figures
