"""What PyTorch's test files need here besides the torch that is installed: torch imported in a
process that does not start CUDA, so that it can be forked; a package that is missing; and names
that were other ones in the release that the files are of."""

import json
import os
import sys
import types
import unittest


def expecttest():
    """The little of that package which torch.testing needs to be imported."""
    module = types.ModuleType("expecttest")

    class TestCase(unittest.TestCase):
        longMessage = True

        def assertExpectedInline(self, actual, expected, skip=0):
            self.assertEqual(expected, actual)

    module.TestCase = TestCase
    module.ACCEPT = False
    return module


def ask_in_a_child():
    """What the modules below ask of CUDA while they are imported."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        import torch
        answers = None
        try:
            answers = {"is_available": torch.cuda.is_available(),
                       "device_count": torch.cuda.device_count(),
                       "is_bf16_supported": torch.cuda.is_bf16_supported(),
                       "get_device_capability": torch.cuda.get_device_capability()}
        finally:
            os.write(writer, json.dumps(answers).encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        answers = json.load(pipe)
    os.waitpid(child, 0)
    if not answers:
        sys.exit("CUDA does not start")
    answers["get_device_capability"] = tuple(answers["get_device_capability"])
    return answers


def import_without_cuda():
    """The modules that all tests import."""
    try:
        import expecttest as _  # noqa: F401
    except ImportError:
        sys.modules["expecttest"] = expecttest()
    import torch
    import torch.cuda._memory_viz
    import torch.cuda._sanitizer
    import torch.utils._triton
    answers = ask_in_a_child()
    torch.utils._triton.has_triton = lambda: False  # Triton's kernels run on real GPUs only
    real = {name: getattr(torch.cuda, name) for name in answers}
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    try:
        import torch.testing._internal.autocast_test_lists
        import torch.testing._internal.common_cuda
        import torch.testing._internal.common_device_type
        import torch.testing._internal.common_optimizers
        import torch.testing._internal.common_utils
        import torch.utils.checkpoint
        import torch.utils.viz._cycles
        import torchvision.models  # noqa: F401
    except ImportError as missing:
        print("not imported ahead:", missing, file=sys.stderr)
    finally:
        for name, value in real.items():
            setattr(torch.cuda, name, value)
    if torch.cuda.is_initialized():
        sys.exit("CUDA was started: the children could not use it")
    # (Nothing of CUDA was called before the fork.)
    torch.cuda._is_in_bad_fork = lambda: False


def of_older_names():
    """What 2.6 had and 2.11 has not, or has otherwise; called where CUDA may start."""
    import torch
    memory = torch.cuda.memory

    def settings(words, real=memory._set_allocator_settings):
        try:
            real(words)
        except ValueError as error:  # as it is since 2.11
            raise RuntimeError(str(error)) from error

    memory._set_allocator_settings = settings
    # It would fetch a program from the network; the lines that it would draw do.
    torch.cuda._memory_viz.format_flamegraph = lambda lines, script=None: lines

    if not hasattr(torch.cuda.MemPool, "allocator"):
        class MemPool(torch.cuda.MemPool):
            def __init__(self, allocator=None, **options):
                super().__init__(allocator, **options)
                self.allocator = allocator

        torch.cuda.MemPool = memory.MemPool = MemPool
