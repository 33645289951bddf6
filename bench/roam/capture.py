#!/usr/bin/env python3
"""A training step (forward, loss, backward, Adam) as a graph for `firn order`, captured on fake
tensors: capture.py MODEL BATCH PREFIX [--persistent] [--scaled-attention].

Writes PREFIX.ops.csv and PREFIX.storages.csv. Adam's m and v are made in the step, as in ROAM's
figures; with --persistent they live across steps. Views are no operators: they read what they look
at.
"""

import argparse
import pathlib
import sys

import models
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "pytorch_plugin" / "firn"))
import _graph  # noqa: E402

RATE, BETA1, BETA2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


def adam(parameter, gradient, m, v):
    if m is None:
        m, v = torch.zeros_like(parameter), torch.zeros_like(parameter)
    m.mul_(BETA1).add_(gradient, alpha=1 - BETA1)
    v.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
    parameter.addcdiv_(m, (v.sqrt() / (1 - BETA2) ** 0.5).add_(EPSILON), value=-RATE / (1 - BETA1))


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


def capture(name, batch, persistent, scaled):
    """The step, recorded."""
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
        # Dropouts may change places, as in ROAM's graphs.
        recorder = _graph.Recorder(steady=False)
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
