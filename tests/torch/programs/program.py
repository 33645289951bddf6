"""A random PyTorch program, from a seed, beside the same program on the CPU: several threads, each
with operators of its own over tensors of its own and over some that all read; views, changes in
place, frees, streams, events, copies both ways, hints. After random stretches and at the end each
tensor is compared with its shadow on the CPU, bit by bit.

    program.py SEED THREADS STEPS BYTES SMALL LARGEST [--faults ENTRY=RATE:ERROR,...] [--refusals]
               [--spoil STEP]

BYTES: what each thread holds at most; SMALL: of that in blocks of less than 1 MiB; LARGEST: one
tensor. --faults: calls of the software GPU's driver fail at that rate once the program is under
way. --refusals: out of memory, a driver's error and lost bytes are answers; what an operator that
failed wrote is given up. --spoil: one bit of one tensor is turned, which has to be found. The
last line is JSON: what was done. Status 9: a wrong bit."""

import argparse
import ctypes
import gc
import json
import random
import sys
import threading
import traceback

import torch

from operators import Draw
from thread import COUNTS, Family, Pair, Thread, Wrong, is_a_refusal


def shared_pairs(options):
    """What all threads read."""
    draw = Draw(random.Random(options.seed))
    pairs = []
    for _ in range(6):
        cpu = draw.fresh(options.largest // 2)
        cpu = cpu.view(1) if cpu.dim() == 0 else cpu
        pairs.append(Pair(cpu.to("cuda"), cpu, Family(shared=True)))
    return pairs


def begin_faults(words):
    gpu = ctypes.CDLL("libcuda.so.1")
    for number, word in enumerate(filter(None, words.split(","))):
        entry, rest = word.split("=")
        rate, error = rest.split(":")
        gpu.firnGpuFailRate(entry.encode(), ctypes.c_double(float(rate)),
                            ctypes.c_uint64(number + 1), ctypes.c_int(int(error)))


def stop_faults(words):
    gpu = ctypes.CDLL("libcuda.so.1")
    for word in filter(None, words.split(",")):
        gpu.firnGpuFailRate(word.split("=")[0].encode(), ctypes.c_double(0), ctypes.c_uint64(1),
                            ctypes.c_int(0))


def settled(options):
    """What is still allocated when all is freed; None where nobody can know."""
    gc.collect()
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()
    except RuntimeError as error:
        if options.refusals and is_a_refusal(error):
            return None
        raise


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("seed", "threads", "steps", "bytes", "small", "largest"):
        parser.add_argument(name, type=int)
    parser.add_argument("--faults", default="")
    parser.add_argument("--refusals", action="store_true")
    parser.add_argument("--spoil", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    threads = [Thread(i, options, shared_pairs(options) if i == 0 else []) for i in
               range(options.threads)]
    for each in threads[1:]:
        each.shared = threads[0].shared
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    begin_faults(options.faults)
    running = [threading.Thread(target=each.run) for each in threads]
    for each in running:
        each.start()
    for each in running:
        each.join()
    stop_faults(options.faults)
    told = {name: sum(each.counts[name] for each in threads) for name in COUNTS}
    errors = [each.error for each in threads if each.error is not None]
    wrong = [str(error) for error in errors if isinstance(error, Wrong)]
    for each in threads:
        each.pairs.clear()
    told.update(wrong=len(wrong), before=before, left=None if errors else settled(options))
    for error in errors:
        if isinstance(error, Wrong):
            print("WRONG", error, flush=True)
        else:
            print("ERROR", *traceback.format_exception(error), flush=True)
    print("done", json.dumps(told), flush=True)
    sys.exit(9 if wrong else 8 if errors else 0)


if __name__ == "__main__":
    main()
