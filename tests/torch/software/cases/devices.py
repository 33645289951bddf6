"""Two devices, visible as CUDA_VISIBLE_DEVICES=2,0 of three."""

import torch
from _common import assert_same


def case_two_are_visible():
    assert torch.cuda.device_count() == 2
    for device in range(2):
        assert torch.cuda.get_device_properties(device).total_memory > 0
    try:
        torch.ones(1, device="cuda:2")
    except RuntimeError as error:
        assert "invalid device ordinal" in str(error), error
    else:
        raise AssertionError("cuda:2 was used")


def case_copies_between_devices():
    x = torch.randn(20, 30)
    a = x.to("cuda:0")
    b = a.to("cuda:1")
    assert b.device.index == 1
    assert_same(b, x)
    assert_same(a.t().to("cuda:1"), x.t().contiguous())
    c = torch.zeros(30, 20, dtype=torch.float64, device="cuda:1")
    c.t().copy_(a)
    assert_same(c, x.t().double().contiguous())
    assert_same(a.half().to("cuda:1", torch.float32, non_blocking=True), x.half().float())


def case_devices_do_not_mix():
    a, b = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
    for function in (lambda: a + b, lambda: torch.cat([a, b]), lambda: torch.dot(a, b)):
        try:
            function()
        except RuntimeError as error:
            assert "Expected all tensors to be on the same device" in str(error), error
            assert "cuda:0" in str(error) and "cuda:1" in str(error), error
        else:
            raise AssertionError("mixed devices were taken")


def case_each_has_its_memory_streams_and_numbers():
    with torch.cuda.device(1):
        x = torch.randn(1000, 1000, device="cuda")
        assert x.device.index == 1
        before = torch.cuda.memory_allocated(0)
        y = x @ x
        assert y.device.index == 1 and torch.cuda.memory_allocated(0) == before
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y + 1
        torch.cuda.synchronize()
        assert_same(z, y.cpu() + 1)
    torch.cuda.manual_seed_all(5)
    a = torch.rand(9, device="cuda:0")
    b = torch.rand(9, device="cuda:1")
    assert torch.equal(a.cpu(), b.cpu())
    assert (x + 0).device.index == 1  # the tensors' device, not the current one


def case_training_across_devices():
    losses = []
    for devices in (("cpu", "cpu"), ("cuda:0", "cuda:1")):
        torch.manual_seed(0)
        first = torch.nn.Linear(8, 16).to(devices[0])
        second = torch.nn.Linear(16, 1).to(devices[1])
        parameters = [*first.parameters(), *second.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        generator = torch.Generator().manual_seed(1)
        found = []
        for _ in range(4):
            x = torch.randn(5, 8, generator=generator).to(devices[0])
            loss = second(torch.relu(first(x)).to(devices[1])).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[0] == losses[1], losses
