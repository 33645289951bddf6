#!/usr/bin/env python3
"""Graphs of `firn order` from a seed: graphs.py KIND OPERATORS SEED PREFIX.

Kinds: step (a training step: blocks of layers with residual connections, their backward pass, an
update for each weight with Adam's m and v made in it, all updates last), random (operators that
read, make and write a few storages of what was made lately).
"""

import random
import sys


class Writer:
    def __init__(self):
        self.storages, self.ops = [], []

    def storage(self, size, kind="temporary"):
        self.storages.append((size, kind))
        return len(self.storages) - 1

    def op(self, name, inputs, outputs=(), mutates=()):
        self.ops.append((name, inputs, outputs, mutates))

    def write(self, prefix):
        with open(f"{prefix}.storages.csv", "w") as file:
            file.write("storage,bytes,kind\n")
            file.writelines(f"{number},{size},{kind}\n"
                            for number, (size, kind) in enumerate(self.storages))
        with open(f"{prefix}.ops.csv", "w") as file:
            file.write("op,name,inputs,outputs,mutates\n")
            for number, (name, *lists) in enumerate(self.ops):
                words = [" ".join(map(str, each)) for each in lists]
                file.write(f"{number},{name},{','.join(words)}\n")


def update(graph, weight, gradient, size):
    m, v = graph.storage(size), graph.storage(size)
    graph.op("zeros", [weight], [m])
    graph.op("zeros", [weight], [v])
    graph.op("add_", [m, gradient], [], [m])
    graph.op("addcmul_", [v, gradient], [], [v])
    root = graph.storage(size)
    graph.op("sqrt", [v], [root])
    graph.op("add_", [root], [], [root])
    graph.op("addcdiv_", [weight, m, root], [], [weight])


def step(graph, operators, draw):
    """Each layer is 2 + 4 + 7 operators."""
    layers = max(1, operators // 13)
    value = graph.storage(draw.randrange(1, 1 << 22), "batch")
    saved = []
    for layer in range(layers):
        size = draw.randrange(1 << 10, 1 << 20)
        weight = graph.storage(draw.randrange(1 << 8, 1 << 22), "param")
        product, result = graph.storage(size), graph.storage(size)
        graph.op("mm", [value, weight], [product])
        skipped = [saved[-2][3]] if layer % 3 == 2 else []
        graph.op("gelu", [product, *skipped], [result])
        saved.append((value, weight, product, result))
        value = result
    error = graph.storage(graph.storages[value][0])
    graph.op("loss", [value], [error])
    updates = []
    for value, weight, product, _ in reversed(saved):
        inner = graph.storage(graph.storages[product][0])
        graph.op("gelu_backward", [error, product], [inner])
        gradient = graph.storage(graph.storages[weight][0])
        graph.op("mm", [inner, value], [gradient])
        error = graph.storage(graph.storages[value][0])
        graph.op("mm", [inner, weight], [error])
        graph.op("mul_", [error], [], [error])
        updates.append((weight, gradient, graph.storages[weight][0]))
    for each in reversed(updates):
        update(graph, *each)


def any_graph(graph, operators, draw):
    for kind in ("param", "batch"):
        graph.storage(draw.randrange(1, 1 << 20), kind)
    reach = draw.randrange(2, 200)
    for _ in range(operators):
        known = len(graph.storages)
        inputs = [max(0, known - 1 - draw.randrange(reach)) for _ in range(draw.randrange(1, 4))]
        mutates = inputs[:1] if draw.random() < 0.1 else []
        graph.op("any", inputs, [graph.storage(draw.randrange(1, 1 << 20))], mutates)


def write(prefix, kind, operators, seed):
    graph = Writer()
    {"step": step, "random": any_graph}[kind](graph, operators, random.Random(seed))
    graph.write(prefix)


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    write(sys.argv[4], sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
