"""Operators that give their work to a stream of their own, and others that wait for it, as
collectives do: nothing but the launch itself says on which stream the tensor is used."""

import ctypes

import torch

import report

MIB = 1 << 18  # of float32
driver = ctypes.CDLL("libcuda.so.1")
side = torch.cuda.Stream()


def address_of(tensor):
    """Without asking the tensor, which would then have to stay where it is: its size is unique."""
    found = [block["address"] for segment in torch.cuda.memory_snapshot()
             for block in segment["blocks"]
             if block["requested_size"] == tensor.nbytes and block["state"] == "active_allocated"]
    assert len(found) == 1, found
    return found[0]


@torch.library.custom_op("firn_test::fill_aside", mutates_args=("x",))
def fill_aside(x: torch.Tensor, address: int, value: int, busy_ms: int) -> None:
    side.wait_stream(torch.cuda.current_stream())
    stream = ctypes.c_void_p(side.cuda_stream)
    assert driver.firnGpuBusy(stream, ctypes.c_uint64(busy_ms * 1_000_000)) == 0
    assert driver.cuMemsetD8Async(ctypes.c_uint64(address), ctypes.c_ubyte(value),
                                  ctypes.c_size_t(x.nbytes), stream) == 0


@torch.library.custom_op("firn_test::wait_for_side", mutates_args=("x",))
def wait_for_side(x: torch.Tensor) -> None:
    torch.cuda.current_stream().wait_stream(side)


def pressure(count):
    """Needs room while the side stream is at work."""
    kept = [torch.full((4 * MIB,), float(i), device="cuda") for i in range(count)]
    return sum(x[7] for x in kept)


def main():
    tensors = [torch.full(((4 + i) * MIB + 128 * i,), float(i), device="cuda") for i in range(4)]
    addresses = [address_of(x) for x in tensors]
    for step in range(3):
        for i, (x, address) in enumerate(zip(tensors, addresses)):
            fill_aside(x, address, 16 * step + i + 1, 60)
        total = pressure(6)
        for x in tensors:
            wait_for_side(x)
        report.loss(step, total + sum(x[11].double() + x[-1].double() for x in tensors))
    report.finish(tensors)


if __name__ == "__main__":
    main()
