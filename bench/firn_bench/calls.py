"""PyTorch's allocators, RMM's pool and Firn beside one another in one process: see
bench/overhead/call_times.py, which is run here."""

from __future__ import annotations

import json
import pathlib
import statistics
import sys

from firn_bench import peers
from firn_bench.context import ROOT, Context, LeftOut
from firn_bench.figures import Figure, median_of

OVERHEAD = ROOT / "bench/overhead"
NAMES = {"native": "PyTorch's own", "cudaMallocAsync": "cudaMallocAsync in software",
         "rmm": "RMM's pool"}


def _environment(peer: str) -> dict[str, str]:
    if str(OVERHEAD) not in sys.path:
        sys.path.append(str(OVERHEAD))
    import call_times
    found = call_times.environment(peer)
    if isinstance(found, str):
        raise LeftOut(found)
    return found


def _cases(context: Context, what: str, peer: str, *words) -> list[dict]:
    """LeftOut where this peer cannot be had."""
    command = [sys.executable, OVERHEAD / "call_times.py", what, "--peer", peer, "--rounds",
               3 if context.quick else 9, *words, *(["--quick"] if context.quick else [])]
    if peer == "rmm":
        command += ["--rmm", peers.rmm_pool(context)]
    said = json.loads(context.run(command, 900, alone=True, **_environment(peer)).splitlines()[-1])
    context.left_out += [f"{what}, {NAMES[peer]}: {each}" for each in said["left_out"]]
    return said["cases"]


def _beside_each(context: Context, what: str, *words) -> list[Figure]:
    """Firn's figure is of the rounds beside PyTorch's own allocator; each other peer's is scaled by
    what Firn took in the rounds beside it, so that all are parts of the same."""
    figures: dict[str, Figure] = {}
    for peer in NAMES:
        try:
            cases = _cases(context, what, peer, *words)
        except LeftOut as reason:
            context.left_out.append(f"{what}, {NAMES[peer]}: {reason}")
            continue
        for case in cases:
            name = ", ".join(filter(None, (case["curve"], case["name"])))
            made = figures.setdefault(name, median_of(what, name, "ns", case["firn"],
                                                      curve=case["curve"] if case["x"] else "",
                                                      x=case["x"]))
            part = statistics.median(a / b for a, b in zip(case["firn"], case["peer"]))
            made.peers[NAMES[peer]] = made.firn / part
    return list(figures.values())


def calls(context: Context) -> list[Figure]:
    """Allocating and freeing, against size, streams, threads and live blocks, beside others."""
    return _beside_each(context, "calls")


def replay(context: Context) -> list[Figure]:
    """What training allocates and frees, recorded before (bench/overhead/mixes), played again."""
    files = sorted((OVERHEAD / "mixes").glob("*.csv"))
    if not files:
        raise LeftOut(f"no recorded mixes in {OVERHEAD / 'mixes'}")
    return _beside_each(context, "replay", *(word for file in files for word in ("--mix", file)))


def operators(context: Context) -> list[Figure]:
    """An observed operator, over a callback that does nothing; and a view where nobody watches."""
    figures = []
    for case in _cases(context, "operators", "native"):
        figures.append(median_of("operators", case["name"] + ", observed", "ns", case["firn"],
                                 peers={"a bare callback": statistics.median(case["peer"]),
                                        "nobody": statistics.median(case["nobody"])}))
        figures.append(median_of("operators", case["name"] + ", over the bare callback", "ns",
                                 [a - b for a, b in zip(case["firn"], case["peer"])]))
    return figures
