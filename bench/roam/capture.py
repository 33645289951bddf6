#!/usr/bin/env python3
"""A training step (forward, loss, backward, Adam) as a graph for `firn order`, captured on fake
tensors: capture.py MODEL BATCH PREFIX [--persistent] [--scaled-attention].

Writes PREFIX.ops.csv and PREFIX.storages.csv. Adam's m and v are made in the step, as in ROAM's
figures; with --persistent they live across steps. Views are no operators: they read what they look
at.
"""

import argparse
import csv

import models
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8
# Write their running statistics, and do not say so.
WRITES_UNSAID = {"native_batch_norm": (3, 4)}


def adam(parameter, gradient, m, v):
    if m is None:
        m, v = torch.zeros_like(parameter), torch.zeros_like(parameter)
    m.mul_(BETA1).add_(gradient, alpha=1 - BETA1)
    v.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    parameter.addcdiv_(m, (v.sqrt() / math_root()).add_(EPSILON), value=-RATE / (1 - BETA1))


def math_root():
    return (1 - BETA2) ** 0.5


def step_of(model, loss):
    def step(parameters, buffers, ms, vs, value, target):
        output = torch.func.functional_call(model, {**parameters, **buffers}, (value,))
        names = [name for name, each in parameters.items() if each.requires_grad]
        gradients = torch.autograd.grad(loss(output, target), [parameters[n] for n in names],
                                        allow_unused=True)
        with torch.no_grad():
            for name, gradient in zip(names, gradients):
                if gradient is not None:
                    adam(parameters[name], gradient, ms.get(name), vs.get(name))
    return step


def storages_of(value):
    """Of tensors in a node's value, however nested."""
    if isinstance(value, torch.Tensor):
        return [value.untyped_storage()]
    if isinstance(value, (list, tuple)):
        return [each for item in value for each in storages_of(item)]
    return []


def inputs_of(node):
    return [each for argument in node.all_input_nodes
            for each in storages_of(argument.meta.get("val"))]


def written_by(node):
    """The arguments that the schema, or the list above, says are written."""
    schema = node.target._schema
    values = [(argument, node.args[at] if at < len(node.args) else node.kwargs.get(argument.name))
              for at, argument in enumerate(schema.arguments)]
    written = [value for argument, value in values
               if argument.alias_info is not None and argument.alias_info.is_write]
    name = schema.name.split("::")[1]
    if name in WRITES_UNSAID and node.args[5]:
        written += [node.args[at] for at in WRITES_UNSAID[name]]
    written = [each for value in written
               for each in (value if isinstance(value, (list, tuple)) else [value])]
    return [each for value in written if isinstance(value, torch.fx.Node)
            for each in storages_of(value.meta.get("val"))]


class Recorder:
    def __init__(self):
        self.numbers, self.rows, self.ops = {}, [], []
        self.kept = []  # storages: their addresses are reused

    def known(self, storage):
        return storage._cdata in self.numbers

    def number(self, storage, kind):
        if not self.known(storage):
            self.kept.append(storage)
            self.numbers[storage._cdata] = len(self.rows)
            self.rows.append((len(self.rows), storage.nbytes(), kind))
        return self.numbers[storage._cdata]

    def numbers_of(self, storages, kind):
        return list(dict.fromkeys(self.number(each, kind) for each in storages))

    def node(self, node):
        if not isinstance(node.target, torch._ops.OpOverload):
            return  # getitem
        inputs = self.numbers_of(inputs_of(node), "const")
        makes = [each for each in storages_of(node.meta.get("val")) if not self.known(each)]
        outputs = self.numbers_of(makes, "temporary")
        mutates = self.numbers_of(written_by(node), "const")
        if outputs or mutates:
            self.ops.append((len(self.ops), node.name, inputs, outputs, mutates))

    def write(self, prefix):
        with open(f"{prefix}.storages.csv", "w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(("storage", "bytes", "kind"))
            out.writerows(self.rows)
        with open(f"{prefix}.ops.csv", "w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(("op", "name", "inputs", "outputs", "mutates"))
            for number, name, *lists in self.ops:
                out.writerow((number, name, *(" ".join(map(str, each)) for each in lists)))


def capture(name, batch, persistent, scaled):
    """A Recorder of the step."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, value, target, loss = models.build(name, batch)
        parameters = dict(model.named_parameters())
        buffers = dict(model.named_buffers())
        ms, vs = ({n: torch.zeros_like(p) for n, p in parameters.items()} if persistent else {}
                  for _ in range(2))
        with sdpa_kernel(SDPBackend.MATH), models.scaled_attention(scaled):
            arguments = (parameters, buffers, ms, vs, value, target)
            graph = make_fx(step_of(model, loss), tracing_mode="real",
                            _allow_non_fake_inputs=True)(*arguments)
        recorder = Recorder()
        for kind, tensors in (("param", parameters.values()), ("m", ms.values()),
                              ("v", vs.values()), ("buffer", buffers.values()),
                              ("batch", [value] if target is None else [value, target])):
            for tensor in tensors:
                recorder.number(tensor.untyped_storage(), kind)
        for node in graph.graph.nodes:
            if node.op == "call_function":
                recorder.node(node)
        return recorder


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=models.NAMES)
    parser.add_argument("batch", type=int)
    parser.add_argument("prefix")
    parser.add_argument("--persistent", action="store_true")
    parser.add_argument("--scaled-attention", action="store_true")
    given = parser.parse_args()
    capture(given.model, given.batch, given.persistent, given.scaled_attention).write(given.prefix)


if __name__ == "__main__":
    main()
