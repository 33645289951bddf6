"""CUDA graphs: a capture changes nothing, a replay does the work again on what is there then."""

import copy

import torch
from _common import assert_same
from _models import GPT, ConvNet, gpt_batches
from torch import nn


def case_capture_changes_nothing_and_replay_does():
    x = torch.arange(8.0, device="cuda")
    counter = torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2 + 1).cumsum(0)
        counter += 1
    assert_same(counter, torch.zeros(3))
    for turn in range(1, 4):
        x.copy_(torch.arange(8.0) * turn)
        graph.replay()
        assert_same(counter, torch.full((3,), float(turn)))
        assert_same(y, (torch.arange(8.0) * turn * 2 + 1).cumsum(0))


def case_capture_across_streams():
    x = torch.randn(64)
    held = x.cuda()
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a = held.sin()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = a.cos()
        torch.cuda.current_stream().wait_stream(side)
        c = a + b
    held.copy_(x + 1)
    graph.replay()
    torch.cuda.synchronize()
    assert_same(c, (x + 1).sin() + (x + 1).sin().cos())


def case_whole_training_step():
    torch.manual_seed(7)
    model = GPT().cuda()
    eager = copy.deepcopy(model)
    batches = [(a.cuda(), b.cuda()) for a, b in gpt_batches(8)]
    tokens, targets = (t.clone() for t in batches[0])

    def optimizer_of(m):
        return torch.optim.AdamW(m.parameters(), lr=1e-3, capturable=True)

    def step(m, optimizer, a, b):
        optimizer.zero_grad(set_to_none=True)
        loss = m(a, b)
        loss.backward()
        optimizer.step()
        return loss

    expected = []
    optimizer = optimizer_of(eager)
    for a, b in batches:
        expected.append(step(eager, optimizer, a, b).item())

    captured = optimizer_of(model)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # warm up, as torch asks, with the first three batches
        losses = [step(model, captured, a, b).item() for a, b in batches[:3]]
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    captured.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step(model, captured, tokens, targets)
    for a, b in batches[3:]:
        tokens.copy_(a)
        targets.copy_(b)
        graph.replay()
        losses.append(loss.item())
    assert losses == expected, (losses, expected)
    for mine, theirs in zip(model.parameters(), eager.parameters()):
        assert_same(mine, theirs.cpu())


def case_graphed_callables():
    torch.manual_seed(3)
    net = ConvNet().eval().cuda()
    plain = copy.deepcopy(net)
    sample = torch.randn(4, 3, 16, 16).cuda()
    graphed = torch.cuda.make_graphed_callables(net, (sample,))
    for seed in range(3):
        x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(seed)).cuda()
        out, expected = graphed(x), plain(x)
        assert_same(out, expected.detach().cpu())
        nn.functional.mse_loss(out, torch.zeros_like(out)).backward()
        nn.functional.mse_loss(expected, torch.zeros_like(expected)).backward()
        for mine, theirs in zip(net.parameters(), plain.parameters()):
            assert_same(mine.grad, theirs.grad.cpu())
            mine.grad = theirs.grad = None  # the graph's gradients are the same memory each time


def case_random_numbers_are_refused():
    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            nn.functional.dropout(x, 0.5)
    except NotImplementedError as error:
        assert "random numbers under stream capture" in str(error), error
    else:
        raise AssertionError("not refused")
    assert_same(x + 1, torch.full((8,), 2.0))


def case_reading_a_value_is_refused():
    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            x.sum().item()
    except RuntimeError:
        pass
    else:
        raise AssertionError("a value was read from a capture")
