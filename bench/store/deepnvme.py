#!/usr/bin/env python3
"""DeepSpeed's DeepNVMe (its aio handle) over one file: writes it, and reads it back.

  deepnvme.py                                  builds the operator, and no more
  deepnvme.py FILE BLOCK_MIB DEPTH TOTAL_MIB   prints "write|read MB/s CPU-ms/GB" for each pass

One request of the whole size, which the handle cuts into blocks, so many of them in flight; memory
locked, the file opened with O_DIRECT: the handle's own ways. The first write, which makes the file,
is not counted.
"""

import contextlib
import resource
import sys
import time

with contextlib.redirect_stdout(sys.stderr):  # what it says while it is loaded and built
    from deepspeed.ops.op_builder import AsyncIOBuilder
    aio = AsyncIOBuilder().load(verbose=False)

PASSES = 2


def processor_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main():
    if len(sys.argv) == 1:
        return
    import torch
    file, block, depth, total = sys.argv[1], *(int(word) for word in sys.argv[2:5])
    handle = aio.aio_handle(block << 20, depth, False, True, 1)
    tensor = handle.new_cpu_locked_tensor(total << 20, torch.empty(0, dtype=torch.uint8))
    tensor.copy_(torch.randint(0, 256, tensor.shape, dtype=torch.uint8))
    for number in range(1 + PASSES):
        for name, move in (("write", handle.sync_pwrite), ("read", handle.sync_pread)):
            cpu, begin = processor_s(), time.monotonic()
            moved = move(tensor, file, 0)
            seconds, cpu = time.monotonic() - begin, processor_s() - cpu
            if moved < 0:
                sys.exit(f"deepnvme.py: {name} failed")
            gb = tensor.numel() / 1e9
            if number > 0:
                print(name, gb / seconds * 1e3, cpu * 1e3 / gb)


if __name__ == "__main__":
    main()
