"""What the cases share."""

import copy

import torch


def bits(tensor):
    """A tensor's bytes on the CPU, comparable."""
    tensor = tensor.detach().cpu()
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.contiguous().flatten().view(torch.uint8) if tensor.numel() else tensor.flatten()


def assert_same(cuda, cpu, what=""):
    """Equal in every bit, NaN included."""
    assert cuda.is_cuda, "%s: not on the device" % what
    assert cuda.dtype == cpu.dtype, "%s: %s, %s" % (what, cuda.dtype, cpu.dtype)
    assert cuda.shape == cpu.shape, "%s: %s, %s" % (what, tuple(cuda.shape), tuple(cpu.shape))
    if not torch.equal(bits(cuda), bits(cpu)):
        difference = (cuda.detach().cpu().double() - cpu.detach().double()).abs().max()
        raise AssertionError("%s: bits differ, by at most %g" % (what, difference))


def both(build, train, steps=5):
    """Trains build() on the CPU and on the device with train(model, device, step) and compares every
    loss and every parameter and buffer."""
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
