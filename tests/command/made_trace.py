"""Traces as `firn run --trace` writes them, made up from a seed: a job of layers whose blocks leave
for host memory and NVMe and come back, as many events as asked for."""

import random

HEADER = "time_ns,event,device,stream,block,bytes,detail\n"
MIB = 1 << 20
OPERATORS = ["aten::mm", "aten::addmm", "aten::add_", "aten::native_layer_norm",
             "aten::_foreach_mul_"]
BEGIN_NS = 86_400_000_000_000  # clocks do not begin at 0


class MadeTrace:
    def __init__(self, file, seed):
        self.file, self.random = file, random.Random(seed)
        self.now, self.rows = BEGIN_NS, 0
        self.moved = {"out": 0, "in": 0, "written": 0, "read": 0}
        self.tiers = {"resident": 0, "away_host": 0, "away_nvme": 0, "dropped": 0}
        self.stalls, self.sampled = [], 0
        file.write(HEADER)

    def row(self, event, block=0, size=0, detail="", stream=0):
        self.file.write(f"{self.now},{event},0,{stream},{block},{size},{detail}\n")
        self.rows += 1

    def wait(self, ns):
        self.now += ns
        if self.now - self.sampled > 10_000_000:
            self.sampled = self.now
            counts = {**self.tiers, **self.moved, "hosted": self.tiers["away_host"],
                      "nvme": self.tiers["away_nvme"], "budget": 512 * MIB, "flight": 8 * MIB,
                      "allocated": sum(self.tiers.values())}
            self.row("sample", detail=";".join(f"{name}={value}" for name, value in counts.items()))

    def move(self, size, **tiers):
        for name, sign in tiers.items():
            self.tiers[name] += sign * size

    def leave(self, block, size):
        """All the way to NVMe."""
        self.row("spill", block, size)
        self.wait(200_000)
        self.row("copied_out", block, size)
        self.moved["out"] += size
        self.move(size, resident=-1, away_host=1)
        self.wait(300_000)
        self.row("written", block, size)
        self.moved["written"] += size
        self.move(size, away_host=-1, away_nvme=1)

    def drop(self, block, size):
        """To nowhere: it is to be made again."""
        self.row("spill", block, size, "by recipe")
        self.wait(100_000)
        self.row("dropped", block, size)
        self.move(size, resident=-1, dropped=1)

    def make_again(self, block, size):
        self.row("remake", block, size)
        self.wait(150_000)
        self.row("remade", block, size)
        self.move(size, resident=1, dropped=-1)

    def come_back(self, block, size, waited_for):
        self.row("fault" if waited_for else "prefetch", block, size)
        begin = self.now
        self.wait(self.random.randrange(100_000, 3_000_000))
        self.row("arrived", block, size)
        self.moved["read"] += size
        self.moved["in"] += size
        self.move(size, resident=1, away_nvme=-1)
        if waited_for:
            operator = self.random.choice(OPERATORS)
            self.stalls.append((block, self.now - begin, operator))
            self.row("stall", block, self.now - begin, operator, stream=1)
            line = self.random.randrange(10, 60)
            self.row("site", 1, self.now - begin, f'"/home/u/train.py:{line} in step, inner"', 1)


def write_trace(path, events, seed=1, ended=True):
    """The MadeTrace; the file has at least `events` rows."""
    with open(path, "w", encoding="utf-8") as file:
        made = MadeTrace(file, seed)
        made.row("begin", detail="pid=4711;at=1750000000;policy=lifetime;host=134217728;store=1;"
                                 "command=python train.py --layers 40 <b>")
        layers = [((1 << 40) + i * 24 * MIB, 24 * MIB - 4096 * (i % 5)) for i in range(40)]
        for block, size in layers:
            made.row("alloc", block, size)
            made.move(size, resident=1)
            made.wait(20_000)
        made.row("pin", *layers[3], "its address was asked for (data_ptr())")
        away, dropped = set(), set()
        scratch = (1 << 40) + 40 * 24 * MIB
        while made.rows < events:
            for i, (block, size) in enumerate(layers):
                if i in away:
                    made.come_back(block, size, made.random.random() < 0.4)
                    away.discard(i)
                if i in dropped:
                    made.make_again(block, size)
                    dropped.discard(i)
                for k in range(12):
                    small = scratch + (k * 7 % 32) * 2 * MIB
                    made.row("alloc", small, MIB + k * 4096)
                    made.row("touch", block, size, "read" if k % 3 else "write")
                    made.wait(made.random.randrange(4_000, 40_000))
                    made.row("touch", small, MIB + k * 4096, "write")
                    made.row("free", small, MIB + k * 4096)
                if i != 3 and i % 2 and made.random.random() < 0.6:
                    made.leave(block, size)
                    away.add(i)
                elif i % 8 == 0:
                    made.drop(block, size)
                    dropped.add(i)
            made.row("pinned", 0, 24 * MIB, "its address was asked for (data_ptr())")
        if ended:
            made.row("end", detail="budget=536870912;peak_device=536870912;"
                                   f"peak_allocated={40 * 24 * MIB};out={made.moved['out']};"
                                   f"in={made.moved['in']};stalls={len(made.stalls)}")
    return made
