"""Operators one by one: PyTorch's own list of operators with sample inputs (op_db), each run on the
CPU and on the device, forward and backward, equal in every bit."""

import sys
import types
import unittest
import warnings

import torch
from _common import assert_same

try:
    import expecttest  # noqa: F401  op_db's module imports it and does not use it here
except ImportError:
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase
    sys.modules["expecttest"] = stand_in

warnings.filterwarnings("ignore")
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

SAMPLES = 5

# Not comparable: memory that is not written, or another answer by design on another device.
NOT_COMPARED = {
    "empty": "unwritten memory", "empty_like": "unwritten memory", "empty_strided": "unwritten",
    "empty_permuted": "unwritten memory", "new_empty": "unwritten memory",
    "new_empty_strided": "unwritten memory", "resize_": "unwritten memory",
    "resize_as_": "unwritten memory", "to_sparse": "sparse", "sparse.mm": "sparse",
    "sparse.sampled_addmm": "sparse",
    "as_strided.partial_views": "views that the copies to the device do not share",
    "native_dropout_backward": "on the device it follows what dropout does on the CPU",
    "tensor_split": "wants an index on the CPU",
    "histogram": "torch has none for CUDA", "histogramdd": "torch has none for CUDA",
    "linalg.lstsq": "another LAPACK driver by default",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu": "for the CPU alone",
}

# torch's own formula of the gradient depends on the device: the forward alone is compared.
OTHER_GRADIENT = {
    "median", "nanmedian", "min", "max", "amin", "amax", "renorm", "nn.functional.rms_norm",
}


def moved(value, device):
    if isinstance(value, torch.Tensor):
        return value.detach().to(device).requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        parts = [moved(part, device) for part in value]
        if isinstance(value, tuple):
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        return parts
    if isinstance(value, dict):
        return {key: moved(part, device) for key, part in value.items()}
    if isinstance(value, (torch.device, str)) and str(value) == "cpu":
        return device
    return value


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)


def call(op, sample, device):
    """The results and the gradients, or the error."""
    args = [moved(part, device) for part in (sample.input, *sample.args)]
    kwargs = {key: moved(part, device) for key, part in sample.kwargs.items()}
    torch.manual_seed(1)
    try:
        result = sample.output_process_fn_grad(op(*args, **kwargs))
    except (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError) as error:
        return error, []
    outputs = list(tensors(result))
    roots = [out for out in outputs if out.requires_grad and out.is_floating_point()]
    leaves = [leaf for leaf in tensors([args, kwargs]) if leaf.requires_grad]
    if roots and leaves:
        grads = torch.autograd.grad([(root * root).sum() for root in roots], leaves,
                                    allow_unused=True)
        outputs += [grad for grad in grads if grad is not None]
    return None, outputs


def sweep(dtype, requires_grad):
    failures = []
    compared = 0
    for op in op_db:
        if op.name.startswith("jiterator"):
            continue  # compiled for a GPU when called
        full_name = op.name + ("." + op.variant_test_name if op.variant_test_name else "")
        if not NOT_COMPARED.keys().isdisjoint((op.name, full_name)):
            continue
        if not op.supports_dtype(dtype, "cpu"):
            continue
        grad = requires_grad and op.supports_autograd and op.name not in OTHER_GRADIENT
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=grad))
        for number, sample in enumerate(samples[:SAMPLES]):
            if any(t.layout != torch.strided for t in tensors([sample.input, sample.args])):
                continue
            label = "%s[%d]" % (op.formatted_name, number)
            cpu_error, cpu = call(op, sample, "cpu")
            try:
                cuda_error, cuda = call(op, sample, "cuda")
                if (cpu_error is None) != (cuda_error is None):
                    raise AssertionError("device: %s, CPU: %s" % (cuda_error, cpu_error))
                if len(cuda) != len(cpu):
                    raise AssertionError("%d tensors, %d on the CPU" % (len(cuda), len(cpu)))
                for a, b in zip(cuda, cpu):
                    if a.layout == torch.strided and (a.is_cuda or not b.is_cpu):
                        assert_same(a, b)
                    elif a.layout == torch.strided and not torch.equal(a, b):
                        raise AssertionError("a result on the CPU differs")
                compared += cpu_error is None
            except Exception as error:
                failures.append("%s: %s" % (label, str(error).splitlines()[0][:200]))
                break
    return compared, failures


def report(compared, failures, at_least):
    print("%d samples compared, %d operators differ" % (compared, len(failures)), flush=True)
    assert not failures, "%d of op_db's entries:\n%s" % (len(failures), "\n".join(failures))
    assert compared >= at_least, compared


def case_float32_with_gradients():
    report(*sweep(torch.float32, True), at_least=1200)


def case_int64():
    report(*sweep(torch.int64, False), at_least=500)


def case_bfloat16():
    report(*sweep(torch.bfloat16, False), at_least=700)


def case_complex64():
    report(*sweep(torch.complex64, False), at_least=500)
