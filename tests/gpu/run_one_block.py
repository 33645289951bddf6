#!/usr/bin/env python3
"""The program one_block with libraries of frameworks' names: of a block of more than half of the
budget, and of as much memory that the program maps by itself, stderr has one line, which names the
framework's own knob.

run_one_block.py PRELOAD_LIBRARY PROGRAM KERNELS
Environment: FIRN_TEST_GPU is the software GPU.
"""

import pathlib
import shutil
import sys
import tempfile
import types

import run_program

XLA = "jax_plugins/xla_cuda13/xla_cuda_plugin.so"
SAID = ("single block", "maps GPU memory by itself")
CASES = [
    # the library's path, the blocks (own: mapped by the program), more environment, words that are
    # said once (None: nothing)
    (XLA, [40, 40, 50], {}, "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"),
    (XLA, [40], {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"},
     "XLA_PYTHON_CLIENT_PREALLOCATE=false"),
    (XLA, [40], {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async",
                 "XLA_PYTHON_CLIENT_PREALLOCATE": "False"}, "tensors one by one"),
    (XLA, ["own12", "own12", "own12"], {"XLA_PYTHON_CLIENT_ALLOCATOR": "CUDA_async"},
     "tensors one by one"),
    (XLA, ["own12", 8, "own12", "own12", "own12"], {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
     "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"),
    (XLA, ["own12", "own12", 8], {}, None),
    ("tensorflow/libtensorflow_framework.so.2", [40], {}, "TF_GPU_ALLOCATOR=cuda_malloc_async"),
    ("librmm.so", [40], {}, "pool_allocator=False"),
    ("cupy/_core.so", [40], {}, "set_allocator(None)"),
    ("vllm/_C.abi3.so", [40], {}, "--gpu-memory-utilization"),
    ("other/library.so", [40], {}, "tensors one by one"),
    ("vllm/_C.abi3.so", [30, 32, 20], {}, None),
]


def main():
    library, program, kernels = sys.argv[1:]
    options = types.SimpleNamespace(program=program, kernels=kernels, devices=1, more=[])
    environment = dict(run_program.clean_environment(options), LD_PRELOAD=library,
                       FIRN_DEVICE="software", FIRN_BUDGET="64MiB", FIRN_HOST="128MiB")
    with tempfile.TemporaryDirectory() as folder:
        for name, blocks, more, words in CASES:
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(kernels, path)
            options.more = [str(path), *map(str, blocks)]
            _, _, ran = run_program.run(options, {**environment, **more})
            lines = [line for line in ran.stderr.splitlines()
                     if any(words in line for words in SAID)]
            print(name, blocks, lines)
            if len(lines) != (words is not None) or (words and words not in lines[0]):
                sys.exit("%s %s: %s\n%s" % (name, blocks, words, ran.stderr))


if __name__ == "__main__":
    main()
