"""One process, two devices: copies between them, both directions, on side streams, of views, by the
allocator's own copy; a model whose halves are on different devices; data parallel over both."""

import torch
import torch.nn as nn
import torch.nn.functional as F

import report

MIB = 1 << 18  # of float32
FIRST, SECOND = torch.device("cuda:0"), torch.device("cuda:1")


def numbers(seed, count=2 * MIB, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-999, 999, (count,), generator=generator).float().to(device)


def copies():
    a = numbers(1, device=FIRST)
    b = a.to(SECOND)
    c = torch.empty_like(a)
    c.copy_(b + 1, non_blocking=True)
    view = numbers(2, device=SECOND).view(-1, 512).t()[3:200]
    d = view.to(FIRST)
    d[5:50].copy_(view[50:95])
    e = torch.zeros(2 * MIB, dtype=torch.float64, device=SECOND)
    e.copy_(c)
    return [a, b, c, d, e]


def round_trips():
    kept = [numbers(10 + i, device=(FIRST, SECOND)[i % 2]) for i in range(8)]
    for _ in range(3):
        kept = [x.to(SECOND if x.device == FIRST else FIRST, non_blocking=True) * 0.5 + 1
                for x in kept]
    return kept


def side_streams():
    """Memory of one device that streams of both use, freed while they may still do."""
    results = []
    one, other = torch.cuda.Stream(FIRST), torch.cuda.Stream(SECOND)
    for i in range(6):
        x = numbers(30 + i, device=FIRST)
        other.wait_stream(torch.cuda.current_stream(FIRST))
        with torch.cuda.stream(other):
            y = x.to(SECOND, non_blocking=True) + i
        x.record_stream(other)
        del x
        one.wait_stream(other)
        with torch.cuda.stream(one):
            z = y.to(FIRST, non_blocking=True) * 2
        y.record_stream(one)
        del y
        torch.cuda.current_stream(FIRST).wait_stream(one)
        z.record_stream(torch.cuda.current_stream(FIRST))
        numbers(60 + i, device=FIRST)  # would take x's place at once
        numbers(70 + i, device=SECOND)
        results.append(z)
    return results


def on_the_wrong_current_device():
    x, y = numbers(40, device=FIRST), numbers(41, device=SECOND)
    with torch.cuda.device(SECOND):
        x.mul_(3)
        z = torch.empty_like(x)
        z.copy_(y)
    return [x, y, z + x]


def halves():
    torch.manual_seed(3)
    first = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024)).to(FIRST)
    second = nn.Sequential(nn.GELU(), nn.Linear(1024, 512)).to(SECOND)
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for step in range(3):
        x = numbers(50 + step, 512 * 512).view(512, 512).to(FIRST) / 999
        loss = F.mse_loss(second(first(x).to(SECOND)), x.to(SECOND))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report.loss(step, loss)
    return parameters


def data_parallel():
    torch.manual_seed(4)
    module = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 512)).to(FIRST)
    both = nn.DataParallel(module, device_ids=[0, 1])  # NCCL sends the parameters to the second
    parameters = list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for step in range(3):
        x = numbers(80 + step, 1024 * 512).view(1024, 512).to(FIRST) / 999
        loss = F.mse_loss(both(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report.loss(step, loss)
    return parameters


def main():
    kept = [numbers(90 + i, device=device) for i in range(12) for device in (FIRST, SECOND)]
    for case in (copies, round_trips, side_streams, on_the_wrong_current_device, halves,
                 data_parallel):
        print("case", case.__name__, report.digest(case()), flush=True)
    print("peaks", *(torch.cuda.max_memory_allocated(device) for device in (FIRST, SECOND)))
    report.finish(kept)


if __name__ == "__main__":
    main()
