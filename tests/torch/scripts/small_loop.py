"""A small training loop that goes on for long: products of elements, hardly any arithmetic, tensors
of 1 to 3 MiB. Prints, every few iterations, what the process and Firn hold by then."""

import argparse
import json
import os

import torch

import report


class Scale(torch.nn.Module):
    """As small a layer as there is with a weight as large as its input."""

    def __init__(self, rows, columns):
        super().__init__()
        self.weight = torch.nn.Parameter(1 + torch.randn(rows, columns) / 64)

    def forward(self, x):
        return torch.tanh(x * self.weight)


def resident_bytes():
    """Of the process: (anonymous memory, all of it)."""
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return tuple(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "VmRSS"))


def open_files(directory):
    """How many there are, and the bytes on disk of those without a name in `directory`."""
    count = stored = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
            count += 1
            if directory and path.startswith(directory):
                stored += os.fstat(int(number)).st_blocks * 512
        except OSError:
            pass  # the listing's own
    return count, stored


def holdings(directory):
    anonymous, resident = resident_bytes()
    files, stored = open_files(directory)
    found = {"anonymous": anonymous, "resident": resident, "files": files, "stored": stored,
             "threads": len(os.listdir("/proc/self/task")),
             "allocated": torch.cuda.memory_allocated()}
    try:
        import firn
    except ImportError:
        return found
    if not firn.enabled():
        return found
    (device,) = firn.stats()["devices"]
    for name in ("device_bytes", "resident_bytes", "spilled_bytes", "faulted_bytes", "lost_blocks",
                 "prefetched_bytes", "nvme_bytes", "period_found"):
        found[name] = device[name]
    found["hosted"] = device["hosted_bytes"]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--every", type=int, default=20, help="iterations between two samples")
    parser.add_argument("--dir", default="", help="where spill files are")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    rows = [256 * (1 + i % 4) for i in range(args.layers)]  # 1 to 3 MiB
    model = torch.nn.ModuleList(Scale(each, 1024) for each in rows).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(args.seed)
    data = torch.randn(64, 1024, generator=generator)
    for step in range(args.steps):
        x = data.roll(step, 0).to("cuda")
        total = 0
        for layer, each in zip(model, rows):
            total = total + layer(x.repeat(each // 64, 1)).square().mean()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        if step % args.every == args.every - 1:
            report.loss(step, total)
            print("held " + json.dumps({"step": step, **holdings(args.dir)}), flush=True)
    report.finish(model.state_dict().values())


if __name__ == "__main__":
    main()
