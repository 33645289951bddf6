"""What the cases share."""

import copy

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map


def bits(tensor):
    """A tensor's bytes on the CPU, comparable."""
    tensor = tensor.detach().cpu()
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.copy_(tensor.reshape(-1))
    return flat.view(torch.uint8)


def assert_same(cuda, cpu, what=""):
    """Equal in every bit, NaN included."""
    assert cuda.is_cuda, "%s: not on the device" % what
    assert cuda.dtype == cpu.dtype, "%s: %s, %s" % (what, cuda.dtype, cpu.dtype)
    assert cuda.shape == cpu.shape, "%s: %s, %s" % (what, tuple(cuda.shape), tuple(cpu.shape))
    if not torch.equal(bits(cuda), bits(cpu)):
        difference = (cuda.detach().cpu().double() - cpu.detach().double()).abs().max()
        raise AssertionError("%s: bits differ, by at most %g" % (what, difference))


def both(build, train, steps=5):
    """Trains build() on the CPU and on the device with train(model, device, steps) and compares
    every loss and every parameter and buffer."""
    torch.manual_seed(7)
    cpu_model = build()
    cuda_model = copy.deepcopy(cpu_model).cuda()
    cpu_losses = train(cpu_model, "cpu", steps)
    cuda_losses = train(cuda_model, "cuda", steps)
    assert len(cpu_losses) == steps
    assert cuda_losses == cpu_losses, "%s\n%s" % (cuda_losses, cpu_losses)
    expected = cpu_model.state_dict()
    for name, value in cuda_model.state_dict().items():
        assert_same(value, expected[name], name)
    assert cpu_losses[0] != cpu_losses[-1]
    return cpu_losses


class Verified(TorchDispatchMode):
    """Runs every operator that is called on the device a second time on the CPU, on copies of its
    arguments, and compares results and arguments written to, bit by bit."""

    SKIPPED = {"aten._local_scalar_dense.default", "aten.empty.memory_format",
               "aten.empty_like.default", "aten.empty_strided.default", "aten.new_empty.default",
               "aten.new_empty_strided.default", "aten.native_dropout.default",
               "aten.record_stream.default", "aten.is_pinned.default"}

    def __init__(self):
        super().__init__()
        self.compared = 0
        self.names = set()

    @staticmethod
    def to_cpu(value):
        if isinstance(value, torch.Tensor) and value.is_cuda:
            return value.detach().cpu()
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        return value

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = tree_flatten((args, kwargs))[0]
        on_device = any(isinstance(t, torch.Tensor) and t.is_cuda for t in inputs)
        if not on_device or str(function) in self.SKIPPED:
            return function(*args, **kwargs)
        cpu_args, cpu_kwargs = tree_map(self.to_cpu, (args, kwargs))
        result = function(*args, **kwargs)
        try:
            expected = function(*cpu_args, **cpu_kwargs)
        except NotImplementedError:
            return result  # torch has it for CUDA alone
        mine = tree_flatten((result, args, kwargs))[0]
        theirs = tree_flatten((expected, cpu_args, cpu_kwargs))[0]
        for a, b in zip(mine, theirs, strict=True):
            if isinstance(a, torch.Tensor) and a.is_cuda:
                assert_same(a, b, str(function))
                self.compared += 1
        self.names.add(str(function))
        return result
