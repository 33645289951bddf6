#!/usr/bin/env python3
"""Times of calls to Firn and to another allocator in one process, in turn, on the software GPU.

  call_times.py calls|replay|operators [--peer native|cudaMallocAsync|rmm] [--rounds 5] [--quick]
                [--mix FILE]... [--rmm LIBRARY]

The last line is JSON: {"left_out": [...], "cases": [{"curve", "x", "name", "firn": [ns, a round
each], "peer": [...]}]}. Run by overhead.py and bench/run.sh, in the environment of environment().
"""

import argparse
import ctypes
import json
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build/bench/overhead/libcalls.so"
GPU_MEMORY = 64 << 30
FIRN_BUDGET = RMM_POOL = 24 << 30

PEER, FIRN, RMM = range(3)
KIB, MIB = 1 << 10, 1 << 20
SIZES = (512, 4 * KIB, 32 * KIB, 256 * KIB, MIB, 2 * MIB, 8 * MIB, 64 * MIB)
QUICK_SIZES = (512, 64 * KIB, MIB, 64 * MIB)
TWO_SIZES = (64 * KIB, 4 * MIB)
STREAMS = (1, 4, 16)
THREADS = (1, 2, 4, 8)
LIVE = (10, 100, 1000, 10_000, 100_000, 1_000_000)
QUICK_LIVE = (10, 1000, 10_000, 1_000_000)
LIVE_MOST = 4 * KIB           # a million larger ones are no GPU's
LARGER_LIVE, LARGER_LIVE_MOST = 10_000, 512 * KIB
# Each call of cudaMallocAsync is the driver's, here the one in software.
DRIVER_LIVE_MOST = 10_000


def environment(peer):
    """What this program is to be run with."""
    from in_turn import script_runs
    paths = script_runs.Paths.find()
    if isinstance(paths, str):
        return paths
    found = script_runs.native_environment(paths, memory=GPU_MEMORY)
    if peer == "cudaMallocAsync":
        found["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
    return found


def show_bytes(size):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


class Times:
    def __init__(self, options):
        self.options = options
        self.left_out, self.cases = [], []
        import torch  # noqa: F401  (the library stands on its libraries)
        self.library = ctypes.CDLL(str(LIBRARY))
        self.peer = RMM if options.peer == "rmm" else PEER
        self.times = 20_000 if options.peer == "cudaMallocAsync" else 200_000
        for name in ("pair_ns", "threads_ns", "live_ns", "replay_ns", "operator_ns"):
            getattr(self.library, name).restype = ctypes.c_double
        for name in ("calls_failure", "calls_begin_rmm"):
            getattr(self.library, name).restype = ctypes.c_char_p

    def begin(self):
        """CUDA, with both allocators in it."""
        import torch
        from firn import _libraries
        # (Read when torch was loaded; read again, another backend's name would be refused.)
        os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
        self.library.calls_note_peer()
        error = ctypes.create_string_buffer(1024)
        plugin = _libraries.load_plugin()
        conf = f"backend:firn,firn_budget:{FIRN_BUDGET}"
        if self.options.what == "operators":
            conf += ",firn_watch:0"  # observed from the start
        if plugin.firn_torch_install(conf.encode(), error, len(error)):
            sys.exit(f"call_times.py: {error.value.decode()}")
        torch.empty(1, device="cuda")
        self.library.calls_begin(torch.cuda.device_count())
        if self.peer == RMM:
            why = self.library.calls_begin_rmm(str(self.options.rmm).encode(),
                                               ctypes.c_uint64(RMM_POOL))
            if why:
                sys.exit(f"call_times.py: RMM's pool: {why.decode()}")

    def pairs(self, curve, x, name, call):
        """Rounds of both, the one first and the other first in turn. `call(which)`."""
        found = {FIRN: [], self.peer: []}
        for number in range(self.options.rounds):
            for which in (FIRN, self.peer) if number % 2 else (self.peer, FIRN):
                ns = call(which)
                if ns < 0:
                    self.left_out.append(f"{curve}, {name}: " + self.library.calls_failure()
                                         .decode().splitlines()[0])
                    return
                found[which].append(ns)
        self.cases.append({"curve": curve, "x": x, "name": name, "firn": found[FIRN],
                           "peer": found[self.peer]})

    def calls(self):
        integer, library, times = ctypes.c_int64, self.library, ctypes.c_int64(self.times)
        quick = self.options.quick
        for size in QUICK_SIZES if quick else SIZES:
            self.pairs("a pair against size", size, show_bytes(size), lambda which: library.pair_ns(
                which, ctypes.c_uint64(size), integer(1), times))
        for size in TWO_SIZES:
            for count in STREAMS:
                self.pairs(f"{show_bytes(size)} against streams", count, f"{count} streams",
                           lambda which: library.pair_ns(which, ctypes.c_uint64(size),
                                                         integer(count), times))
            for count in THREADS:
                self.pairs(f"{show_bytes(size)} against threads", count, f"{count} threads",
                           lambda which: library.threads_ns(which, ctypes.c_uint64(size),
                                                            integer(count), times))
        lives = [each for each in (QUICK_LIVE if quick else LIVE)
                 if self.options.peer != "cudaMallocAsync" or each <= DRIVER_LIVE_MOST]
        for curve, among in (("64 KiB beside live blocks", False), ("one of live blocks", True)):
            for live in lives:
                self.pairs(curve, live, f"{live:,} live", lambda which: library.live_ns(
                    which, integer(live), ctypes.c_uint64(LIVE_MOST), among, times))
        self.pairs("one of live blocks up to 512 KiB", LARGER_LIVE, f"{LARGER_LIVE:,} live",
                   lambda which: library.live_ns(which, integer(LARGER_LIVE),
                                                 ctypes.c_uint64(LARGER_LIVE_MOST), True, times))

    def replay(self):
        import mixes
        for file in self.options.mix:
            try:
                mix = mixes.read(file)
            except ValueError as error:
                self.left_out.append(str(error))
                continue
            if mix.cut:
                self.left_out.append(mix.cut)
            events = len(mix.handles)
            columns = [(kind * events).from_buffer(column) for kind, column in
                       ((ctypes.c_uint32, mix.handles), (ctypes.c_uint64, mix.bytes),
                        (ctypes.c_uint32, mix.streams))]
            integer = ctypes.c_int64
            self.pairs("replay", 0, f"{mix.name}, {events:,} events", lambda which:
                       self.library.replay_ns(which, *columns, integer(events),
                                              integer(mix.handles_count),
                                              integer(mix.streams_count),
                                              integer(max(1, self.times // events))))
            self.library.calls_empty_cache(FIRN)
            self.library.calls_empty_cache(self.peer)

    def operators(self):
        """`peer` is a callback that does nothing; `nobody`: no callback at all."""
        for tensors, name in ((0, "a view"), (1, "an operator on one tensor"),
                              (4, "an operator on four tensors")):
            found = {"nobody": [], "peer": [], "firn": []}
            for _ in range(self.options.rounds):
                for who, times in enumerate(found.values()):
                    self.library.operators_watched_by(ctypes.c_int(who))
                    times.append(self.library.operator_ns(ctypes.c_int64(tensors),
                                                          ctypes.c_int64(self.times)))
            self.cases.append({"curve": "", "x": 0, "name": name, **found})


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("calls", "replay", "operators"))
    parser.add_argument("--peer", choices=("native", "cudaMallocAsync", "rmm"), default="native")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and counts")
    parser.add_argument("--mix", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--rmm", type=pathlib.Path, help="the library made of rmm_pool.cpp")
    options = parser.parse_args()
    times = Times(options)
    times.begin()
    getattr(times, options.what)()
    print(json.dumps({"left_out": times.left_out, "cases": times.cases}), flush=True)
    os._exit(0)  # two allocators' ends of process are not what is measured


if __name__ == "__main__":
    main()
