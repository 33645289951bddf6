"""Cases of features.py whose kernels are launched past PyTorch's operators: operators of a
program's own that use a tensor which is not among their arguments, or another stream than the
current one, and raw Triton."""

import ctypes
import os

import torch

import pins

MIB_WORDS = 1 << 18


class Kernels:
    """The tests' kernels by the driver API, as an extension would launch them. A tensor's address
    is taken as C++ takes it, so that nobody in Python is asked for it."""

    def __init__(self):
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # the context is current
        self.cu = ctypes.CDLL("libcuda.so.1")
        self.torch = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__),
                                              "lib", "libtorch_cpu.so"))
        self.pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
        self.pointer_in.restype = ctypes.c_void_p
        self.pointer_in.argtypes = [ctypes.py_object, ctypes.c_char_p]
        self.module = ctypes.c_void_p()
        self.need("cuModuleLoad", ctypes.byref(self.module),
                  os.environ["FIRN_BENCH_KERNELS"].encode())

    def need(self, name, *arguments):
        result = getattr(self.cu, name)(*arguments)
        if result:
            raise RuntimeError(f"{name}: {result}")

    def function(self, name):
        found = ctypes.c_void_p()
        self.need("cuModuleGetFunction", ctypes.byref(found), self.module, name.encode())
        return found

    def address(self, tensor):
        handle = ctypes.c_void_p(self.pointer_in(
            torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor), None))
        at = ctypes.c_void_p()
        if self.torch.aoti_torch_get_data_ptr(handle, ctypes.byref(at)):
            raise RuntimeError("aoti_torch_get_data_ptr")
        self.torch.aoti_torch_delete_tensor_object(handle)
        return ctypes.c_uint64(at.value)

    def launch(self, name, stream, values, blocks=64, threads=256):
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self.need("cuLaunchKernel", self.function(name), blocks, 1, 1, threads, 1, 1, 0,
                  ctypes.c_void_p(stream.cuda_stream), pointers, None)

    def mix(self, stream, to, a, b, salt):
        """to = mixed(to, a, b, salt), word by word."""
        self.launch("mix", stream, [self.address(to), self.address(a), self.address(b),
                                    ctypes.c_uint64(to.numel()), ctypes.c_uint32(salt)])

    def host_words(self, count):
        at = ctypes.c_void_p()
        self.need("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(4 * count), 3)
        ctypes.memset(at, 0, 4 * count)
        return at.value


def words(count, seed):
    return torch.full((count,), seed, dtype=torch.int32, device="cuda").cumsum(0).to(torch.int32)


def digest(tensors):
    """Numbers that tell any word of them, most likely."""
    return [float(int((each.long() * (number + 1)).sum()) % (1 << 52))
            for number, each in enumerate(tensors)]


def by_name(scale):
    """An operator whose kernel reads and writes a cache that it finds by its name, as vLLM's do."""
    kernels, count = Kernels(), 2 * MIB_WORDS * scale
    caches = {f"layer {i}": words(count, i + 1) for i in range(12)}

    def attend(x: torch.Tensor, name: str) -> torch.Tensor:
        out, stream = torch.zeros_like(x), torch.cuda.current_stream()
        kernels.mix(stream, caches[name], x, x, 3)
        kernels.mix(stream, out, caches[name], x, 5)
        return out
    operator = torch.library.custom_op("firn_bench::attend", attend, mutates_args=(),
                                       device_types="cuda")
    x, losses = words(count, 77), []
    for _ in range(4):
        for name in caches:
            x = operator(x, name).add_(1)
        losses += digest([x])
        pins.sample()
    return losses + digest(caches.values())


def side_stream(scale):
    """Operators that leave work behind on a stream of their own, as collectives do; another one
    waits for it. In between others need the memory."""
    kernels, count = Kernels(), 2 * MIB_WORDS * scale
    side, flags, begun = torch.cuda.Stream(), kernels.host_words(1024), [0]

    def begin(x: torch.Tensor, other: torch.Tensor) -> None:
        side.wait_stream(torch.cuda.current_stream())
        kernels.launch("wait_for", side, [ctypes.c_uint64(flags + 64 * begun[0])], 1, 1)
        kernels.mix(side, x, other, other, begun[0])

    def finish(x: torch.Tensor) -> None:
        ctypes.c_uint32.from_address(flags + 64 * begun[0]).value = 1
        begun[0] += 1
        torch.cuda.current_stream().wait_stream(side)
    library = {name: torch.library.custom_op(f"firn_bench::{name}", work, mutates_args=("x",),
                                             device_types="cuda")
               for name, work in (("begin", begin), ("finish", finish))}
    buckets = [words(count, i + 1) for i in range(6)]
    others = [words(count, 100 + i) for i in range(8)]
    losses = []
    for number in range(12):
        library["begin"](buckets[number % 6], buckets[(number + 1) % 6])
        for other in others:  # room is wanted while the bucket is being written
            other.add_(number)
        library["finish"](buckets[number % 6])
        losses += digest([buckets[number % 6]])
        pins.sample()
    return losses + digest(buckets) + digest(others)


def triton(scale):
    """Kernels that a program launches by Triton itself, forward and backward, as Liger's."""
    from triton_case import gated
    torch.manual_seed(3)
    wide, layers = 256 * scale, 6
    weights = [torch.nn.Parameter(torch.randn(wide, 2 * wide, device="cuda") / wide ** .5)
               for _ in range(layers)]
    optimizer = torch.optim.AdamW(weights, lr=1e-3)
    x, losses = torch.randn(512 * scale, wide, device="cuda"), []
    for _ in range(6):
        y = x
        for weight in weights:
            y = y + gated(y @ weight)
        loss = y.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        pins.sample()
    return losses


def graph_across(scale):
    """A capture during which memory becomes short enough to be looked at (firn_watch)."""
    count, side = 2 * MIB_WORDS * scale, torch.cuda.Stream()
    before = [words(count, i + 1) for i in range(4)]

    def step():
        made = [each * 3 for each in before] + [each + 1 for each in before]
        made += [a - b for a, b in zip(made, reversed(made))]
        return torch.stack([each.sum() for each in made]).sum()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        total = step()
    losses = []
    for number in range(4):
        others = [words(count, number * 10 + i) for i in range(6)]
        graph.replay()
        losses += [float(total.item() % (1 << 52)), *digest(others)]
        before[number].add_(1)
        pins.sample()
    return losses


CASES = {"by-name": by_name, "side-stream": side_stream, "triton": triton,
         "graph-across": graph_across}
