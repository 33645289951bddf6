"""Work on several streams: inputs prepared on one, training on another, an average of the weights
on a third, with memory handed over by record_stream and events."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

import report


def prepared(stream, generator, args):
    """The next batch, made on `stream`, and the event after which it may be used."""
    pictures = torch.rand(args.batch, args.width, generator=generator).pin_memory()
    targets = torch.rand(args.batch, args.width, generator=generator).pin_memory()
    with torch.cuda.stream(stream):
        x = pictures.to("cuda", non_blocking=True)
        y = targets.to("cuda", non_blocking=True)
        x = (x - x.mean()) / x.std()
        ready = torch.cuda.Event()
        ready.record(stream)
    return x, y, ready


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=10)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    blocks = [nn.Sequential(nn.Linear(args.width, args.width), nn.Tanh())
              for _ in range(args.layers)]
    model = nn.Sequential(*blocks).to("cuda")
    average = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(args.seed)
    inputs, averaging = torch.cuda.Stream(), torch.cuda.Stream()
    main_stream = torch.cuda.current_stream()
    inputs.wait_stream(main_stream)
    following = prepared(inputs, generator, args)
    for step in range(args.steps):
        x, y, ready = following
        main_stream.wait_event(ready)
        x.record_stream(main_stream)
        y.record_stream(main_stream)
        following = prepared(inputs, generator, args)
        loss = F.mse_loss(model(x), y)
        del x, y
        optimizer.zero_grad()
        loss.backward()
        main_stream.wait_stream(averaging)
        optimizer.step()
        averaging.wait_stream(main_stream)
        with torch.cuda.stream(averaging), torch.no_grad():
            for mean, parameter in zip(average, model.parameters()):
                scaled = parameter * 0.1
                mean.mul_(0.9).add_(scaled)
        report.loss(step, loss)
    torch.cuda.synchronize()
    report.finish([*model.parameters(), *average])


if __name__ == "__main__":
    main()
