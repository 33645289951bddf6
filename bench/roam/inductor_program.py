#!/usr/bin/env python3
"""The allocations of torch.compile's forward and backward graph, as eager.py writes them:
inductor_program.py MODEL BATCH FILE PLANNED_FILE [--scaled-attention]

Inductor lowers the model for the GPU at hand; its Python is then run on fake tensors with Triton
kernels left out: buffers come and go as that program says, none takes memory. Three times: forward,
backward, gradients let go of. PLANNED_FILE is the same with Inductor's own memory planning, which
it never does in training ("because it presently increases peak memory consumption", says
torch/_inductor/codegen/wrapper.py of 2.11): it is told that these graphs are for inference.
"""

import argparse
import contextlib
import importlib.util
import json
import pathlib
import sys
import tempfile

import eager
import models
import torch
import torch._inductor.config
import torch._inductor.graph
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel


class Lowered(Exception):
    """Both graphs are there: nothing has to run."""


def sources(function, arguments, backend):
    """The Python that Inductor makes of the forward and the backward graph."""
    found = []

    class NotRun:
        """In place of the module that Inductor would load."""
        __file__ = __path__ = key = "lowered"

        @staticmethod
        def call(_):
            raise Lowered

    def compile_to_module(lowering):
        found.append(lowering.codegen()[0].value)
        return NotRun

    torch._inductor.graph.GraphLowering.compile_to_module = compile_to_module
    torch._functorch.config.force_non_lazy_backward_lowering = True
    torch._functorch.config.enable_autograd_cache = False
    torch._inductor.config.fx_graph_cache = False
    with contextlib.suppress(Lowered):
        torch.compile(function, backend=backend)(*arguments)
    if len(found) != 2:
        sys.exit(f"inductor_program.py: {len(found)} graphs, not a forward and a backward one")
    return found


def planned_always():
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    passes = PythonWrapperCodegen.run_wrapper_ir_passes
    torch._inductor.config.memory_planning = True
    PythonWrapperCodegen.run_wrapper_ir_passes = lambda wrapper, _: passes(wrapper, True)


class NoKernel:
    def run(self, *_, **__):
        pass


class NoCompiler:
    """In the place of Inductor's AsyncCompile."""

    def triton(self, *_, **__):
        return NoKernel()

    def wait(self, _):
        pass


def from_pool(pool, offset, dtype, size, stride):
    item = torch.empty((), dtype=dtype, device="meta").element_size()
    length = 1 + sum((count - 1) * step for count, step in zip(size, stride))
    flat = pool.as_strided((pool.untyped_storage().nbytes() // pool.element_size(),), (1,), 0)
    part = flat.view(torch.uint8)[offset:offset + length * item]
    return part.view(dtype).as_strided(size, stride)


def reinterpreted(tensor, size, stride, offset=0):
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)


def module_of(source, folder, name):
    """The source as a module without kernels. Its Runner knows the graph's partitions."""
    path = pathlib.Path(folder) / f"{name}.py"
    path.write_text(source.replace("async_compile = AsyncCompile()",
                                   "async_compile = __no_compiler__"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    module.__no_compiler__ = NoCompiler()
    spec.loader.exec_module(module)
    # The program's own ways past the dispatcher, which fake tensors cannot go.
    module.empty_strided_cuda = lambda size, stride, dtype: torch.empty_strided(
        size, stride, dtype=dtype, device="cuda")
    module.reinterpret_tensor = reinterpreted
    module.alloc_from_pool = from_pool
    module.assert_size_stride = module.assert_alignment = lambda *_: None
    module.get_raw_stream = lambda _: 0
    return module


def arguments_of(source):
    """The names that the graph takes, in their order."""
    body = source[source.index("def call(self, args):"):]
    line = body.splitlines()[1]
    return line.split(" = args")[0].replace(",", " ").split()


def steps(texts, inputs):
    """Forward and backward on fake tensors, recorded."""
    recorder = eager.Recorder()
    with tempfile.TemporaryDirectory() as folder, \
            FakeTensorMode(allow_non_fake_inputs=True) as mode:
        forward, backward = (module_of(text, folder, name)
                             for text, name in zip(texts, ("forward", "backward")))
        held = [mode.from_tensor(each) for each in inputs]
        for each in held:
            recorder.made(each.untyped_storage())
        names = arguments_of(texts[1])
        tangents = [name for name in names if name.startswith("tangents")]
        with recorder, torch.no_grad():
            for _ in range(eager.STEPS):
                made = list(forward.call(list(held)))
                saved = made[len(made) - len(names) + len(tangents):]
                ones = torch.ones((), device="cuda")
                given = [*saved, *(ones for _ in tangents)]
                del made, saved, ones
                recorder.mark("backward")
                gradients = backward.call(given)
                del given
                recorder.mark("done")
                del gradients
                recorder.mark("step")
    return recorder.events


def program(name, batch):
    kept = []

    def keep(module, examples, **_):
        """What the graph that Dynamo found takes, in AOTAutograd's order."""
        kept.extend(examples)
        from torch._inductor.compile_fx import compile_fx
        return compile_fx(module, examples)

    model, value, target, loss = models.build(name, batch)
    texts = sources(lambda value, target: loss(model(value), target), (value, target), keep)
    return steps(texts, kept)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=models.NAMES)
    parser.add_argument("batch", type=int)
    parser.add_argument("file")
    parser.add_argument("planned_file")
    parser.add_argument("--scaled-attention", action="store_true")
    given = parser.parse_args()
    torch._inductor.config.compile_threads = 1
    for path in (given.file, given.planned_file):
        if path == given.planned_file:
            planned_always()
        torch._dynamo.reset()
        with torch.device("cuda"), sdpa_kernel(SDPBackend.MATH), \
                models.scaled_attention(given.scaled_attention):
            events = program(given.model, given.batch)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(events, file)


if __name__ == "__main__":
    main()
