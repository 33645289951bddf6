"""One of two ranks, of which the second is killed while the first waits for it in a collective:
`python lost_rank.py RANK FILE`."""

import os
import signal
import sys

import torch
import torch.distributed as dist


def main():
    rank, file = int(sys.argv[1]), sys.argv[2]
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{file}", rank=rank, world_size=2)
    x = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(x)
    print("sum", x[0].item(), flush=True)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    print("not reached", flush=True)


if __name__ == "__main__":
    main()
