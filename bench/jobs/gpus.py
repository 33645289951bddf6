"""Modelled hardware: what a kernel takes by a roofline, and the links and disks around it.

Rates are the makers' data sheets, without sparsity; the parts of them that kernels reach are set
once for all (a roofline knows no better): see REACHED.
"""

from __future__ import annotations

import dataclasses

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Gpu:
    name: str
    memory_gib: float          # usable
    half_tflops: float         # bf16 and fp16, fp32 accumulation
    single_tflops: float       # fp32 matrix products (TF32 where there is one)
    memory_gbs: float
    link_gbs: float            # to the host, each way, as copies reach it
    peer_gbs: float            # to the next GPU: all-reduce's bus bandwidth


GPUS = {each.name: each for each in (
    Gpu("h200", 141, 989.0, 494.0, 4800.0, 55.0, 360.0),
    Gpu("h100", 80, 989.0, 494.0, 3350.0, 55.0, 360.0),
    # As training of Llama 3.1 8B reaches it: 39 % of its peak at best (torchtitan's docs,
    # performance.md).
    Gpu("h100-titan", 80, 989.0 * 0.39 / 0.7, 494.0 * 0.39 / 0.7, 3350.0, 55.0, 360.0),
    Gpu("a100", 40, 312.0, 156.0, 1555.0, 24.0, 230.0),
    Gpu("rtx4090", 24, 165.0, 82.6, 1008.0, 25.0, 12.0),
    # L2L's, over PCIe 3. Of its 125 TFLOPS in fp16 large products reach 56 (REACHED's part of 80).
    Gpu("v100", 16, 80.0, 15.7, 900.0, 12.0, 12.0),
)}

@dataclasses.dataclass(frozen=True)
class Cpu:
    """What steps an optimizer at the host, as fast as memory brings its operands."""
    name: str
    memory_gbs: float          # as copies reach it

    @property
    def parameters_s(self) -> float:
        return self.memory_gbs * 1e9 / UPDATE_BYTES


# Of AdamW, a parameter of 16 bits: reads its gradient, and master and two states of 32 bits, writes
# these three and the parameter. (A step at the host that a trace names by its rate: 1g is what L2L
# is taken to have, Pudipeddi et al., arXiv 2002.05645; 10g two sockets of 12 channels of DDR5-4800
# at a third of their peak.)
UPDATE_BYTES = 2 + 12 + 12 + 2
CPUS = {each.name: each for each in (Cpu("1g", 28.0), Cpu("2g", 56.0), Cpu("5g", 140.0),
                                     Cpu("10g", 280.0))}

# One SSD, read and write, GB/s.
SSDS = {"gen5": (13.0, 9.0), "gen4": (6.8, 5.0), "p5800x": (7.2, 6.1), "teraio": (4.0, 4.0)}


@dataclasses.dataclass(frozen=True)
class Machine:
    """What one GPU has: a part of it where a machine has several."""
    name: str
    gpu: Gpu
    ssd: str
    ssds: int
    host_gib: int              # for staging and for blocks; 1: staging only

    @property
    def read_gbs(self) -> float:
        return self.ssds * SSDS[self.ssd][0]

    @property
    def write_gbs(self) -> float:
        return self.ssds * SSDS[self.ssd][1]

    @property
    def budget_bytes(self) -> int:
        """All of the GPU's memory but what the driver and libraries take."""
        return int((self.gpu.memory_gib - 1) * GIB)

    def words(self) -> str:
        host = f"{self.host_gib} GiB of host memory" if self.host_gib > 1 else "no host memory"
        return (f"{self.gpu.name}, link {self.gpu.link_gbs:g} GB/s each way, {self.ssds} SSDs "
                f"({self.ssd}: {SSDS[self.ssd][0]:g} GB/s read, {SSDS[self.ssd][1]:g} write), "
                f"{host}")


MACHINES = {each.name: each for each in (
    Machine("h200", GPUS["h200"], "gen5", 4, 64),
    Machine("a100", GPUS["a100"], "gen4", 4, 64),
    Machine("rtx4090", GPUS["rtx4090"], "gen4", 2, 64),
    # L2L's: 512 GB of host memory, of which the system and its data have a part.
    Machine("v100", GPUS["v100"], "gen4", 1, 384),
    # One of TERAIO's two GPUs: 16 GB/s to and from its SSDs, those first.
    Machine("teraio", GPUS["h100"], "teraio", 4, 1),
    Machine("teraio-titan", GPUS["h100-titan"], "teraio", 4, 1),
    # One of SSDTrain's two GPUs, and half of its four Optane SSDs, and no host memory.
    Machine("ssdtrain", GPUS["a100"], "p5800x", 2, 1),
)}

REACHED = {"flops": 0.7, "bytes": 0.85, "least_ns": 4000}


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a kernel does, whatever GPU it runs on: computes so much, moves so many bytes of its
    GPU's memory, over the link to the host, and among the shards. Or what the host does instead:
    steps so many parameters."""
    flops: float = 0.0
    moved: float = 0.0
    itemsize: int = 4
    copied: float = 0.0
    reduced: float = 0.0
    stepped: float = 0.0

    def ns(self, gpu: Gpu, cpu: Cpu = CPUS["1g"]) -> int:
        if self.stepped:
            return max(1, round(self.stepped / cpu.parameters_s * 1e9))
        if self.reduced:
            return max(20_000, round(2 * self.reduced / gpu.peer_gbs))
        if self.copied:
            return max(int(REACHED["least_ns"]), round(self.copied / gpu.link_gbs))
        tflops = gpu.half_tflops if self.itemsize <= 2 else gpu.single_tflops
        computing = self.flops / (tflops * REACHED["flops"]) / 1e3
        moving = self.moved / (gpu.memory_gbs * REACHED["bytes"])
        return max(int(REACHED["least_ns"]), round(max(computing, moving)))
