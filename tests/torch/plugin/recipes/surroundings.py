"""Recipes under what surrounds an operator: pieces of a program, each of which says
what it expects of its tensors. A program of its own, for the software GPU and for real ones:

    PYTORCH_CUDA_ALLOC_CONF=backend:firn python surroundings.py [NAME...]

prints a line for each case, "NAME ok" or "NAME: what is wrong", and ends with 1 where one is.
"""

import contextlib
import sys
import traceback

import torch
from cases import GELU, big, case, gelu, main, none_of, stands, void
from firn_recipes import (SETTING, UNSEEN, WRITTEN, check_again, keep, make_again, recipe)


@case
def autograd_and_what_it_saves():
    x = big().requires_grad_()
    weight = big(2, (48, 32)).requires_grad_()
    y = torch.nn.functional.gelu(x)
    z = y @ weight
    out = torch.softmax(z, -1)
    for tensor, name in ((y, GELU), (z, "aten::mm"), (out, "aten::_softmax")):
        stands(tensor, name)
    (out * out).sum().backward()
    grads = [x.grad.clone(), weight.grad.clone()]
    x.grad = weight.grad = None
    y = torch.nn.functional.gelu(x)
    z = y @ weight
    out = torch.softmax(z, -1)
    for tensor in (out, z, y):
        assert check_again(tensor, ()) == 1
    (out * out).sum().backward()
    assert torch.equal(x.grad, grads[0]) and torch.equal(weight.grad, grads[1])


@case
def inference_mode():
    x = big()
    with torch.inference_mode():
        y = gelu(x)
        stands(y)
    stands(y)                     # made again outside, too
    z = gelu(x)
    with torch.inference_mode():
        stands(z)
        x.add_(1)
    void(z, WRITTEN)


@case
def autocast():
    """The operator's inputs are the casts, which are kept where autocast keeps them."""
    x, weight = big(), big(2, (48, 32)).requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        y = x @ weight
        assert y.dtype == torch.bfloat16
        assert recipe(y).startswith("aten::mm"), recipe(y)
        half = x.bfloat16()
        z = torch.nn.functional.gelu(half)
        stands(z)
        s = torch.softmax(z, -1)  # to float first, by autocast
        assert s.dtype == torch.float32 and recipe(s).startswith("aten::_softmax")
    stands(z)                     # made again where there is none
    w = gelu(half)
    with torch.autocast("cuda", torch.float16):
        stands(w)
        t = gelu(big(3))


@case
def functorch():
    x = big()
    y = torch.vmap(lambda row: torch.nn.functional.gelu(row) * 2)(x)
    none_of(y)
    g = torch.func.grad(lambda t: torch.nn.functional.gelu(t).sum())(x)
    none_of(g)
    z = gelu(x)

    def within(row):
        stands(z)
        return row + 1
    torch.vmap(within)(x)
    stands(z)


@case
def python_modes_and_subclasses():
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Doubles(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            return result * 2 if function is torch.ops.aten.gelu.default else result

    class Counts(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.calls += 1
            return function(*args, **(kwargs or {}))

    class Named(torch.Tensor):
        pass

    class Wrapped(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            with torch._C._DisableTorchDispatch():
                return function(*args, **(kwargs or {})).mul_(3)
    x = big()
    z = gelu(x)
    with Doubles():
        y = torch.nn.functional.gelu(x)
        none_of(y)
        assert make_again(z) == ""    # below the mode
    assert torch.equal(y, torch.nn.functional.gelu(x) * 2)
    assert torch.equal(z, torch.nn.functional.gelu(x))
    with Counts():
        stands(torch.nn.functional.gelu(x))
    stands(torch.nn.functional.gelu(x.as_subclass(Named)).as_subclass(torch.Tensor))
    none_of(torch.nn.functional.gelu(torch.Tensor._make_subclass(Wrapped, x)))


@case
def an_operator_within_an_operator():
    """A kernel may write what it calls others for; only the outermost call is known."""
    library = torch.library.Library("firn_recipes", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: torch.nn.functional.gelu(x), "CUDA")
    none_of(torch.ops.firn_recipes.twice(big()))


@case
def settings_of_products():
    @contextlib.contextmanager
    def changed(where, name, value):
        before = getattr(where, name)
        setattr(where, name, value)
        yield
        setattr(where, name, before)
    x, weight = big(), big(2, (48, 32))
    y, z = x @ weight, gelu(x)
    for where, name in ((torch.backends.cuda.matmul, "allow_tf32"),
                        (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
                        (torch.backends.cudnn, "deterministic")):
        with changed(where, name, not getattr(where, name)):
            void(y, SETTING)
            stands(z)
        stands(y, "aten::mm")
    with changed(torch.backends.cuda.matmul, "fp32_precision", "tf32"):  # (torch's newer way)
        void(y, SETTING)
        stands(x @ weight, "aten::mm")
    with changed(torch.backends.cudnn, "benchmark", True):
        none_of(big(3) @ weight)
        assert recipe(y).endswith(SETTING)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(not before, warn_only=True)
    void(z, SETTING)
    torch.use_deterministic_algorithms(before, warn_only=True)
    stands(z)
    count = torch.arange(3000, device="cuda")
    half = count * 2.5
    stands(half, "aten::mul.Tensor")
    torch.set_default_dtype(torch.float64)
    void(half, SETTING)
    torch.set_default_dtype(torch.float32)
    stands(half, "aten::mul.Tensor")


@case
def batch_norm():
    x = torch.randn(4, 3, 8, 8, device="cuda")
    mean, var = torch.zeros(3, device="cuda"), torch.ones(3, device="cuda")
    with torch.backends.cudnn.flags(enabled=False):
        y = torch.nn.functional.batch_norm(x, mean, var)
        stands(y, "aten::native_batch_norm")
        z = torch.nn.functional.batch_norm(x, mean, var, training=True)
        none_of(z)                      # it writes the statistics
        void(y, WRITTEN)                # ... which this one read
        stands(torch.nn.functional.batch_norm(x, None, None, training=True),
               "aten::native_batch_norm")


@case
def other_streams():
    x = big()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = gelu(x)
        stands(y)
    torch.cuda.synchronize()
    assert make_again(y, torch.cuda.current_stream()) == ""
    expected = torch.nn.functional.gelu(x)
    torch.cuda.synchronize()
    assert torch.equal(y, expected)
    third = torch.cuda.Stream()
    assert make_again(y, third) == ""
    third.synchronize()
    assert torch.equal(y, expected)
    with torch.cuda.stream(side):
        x.add_(1)
    void(y, WRITTEN)


@case
def several_threads():
    import threading
    wrong = []

    def work(seed):
        try:
            for i in range(20):
                x = big(seed * 100 + i)
                y = torch.nn.functional.gelu(x)
                z = torch.relu(y)
                for tensor in (z, y):
                    if recipe(tensor).partition(":")[2] in ("", ":gelu", ":relu"):
                        check_again(tensor, ())
        except BaseException:
            wrong.append(traceback.format_exc())
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong, wrong[0]


@case
def profilers():
    x = big()
    y = gelu(x)
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        assert make_again(y) == ""
        assert make_again(y) == ""
    names = {each.key: each.count for each in seen.key_averages()}
    assert names.get("firn::remake(aten::gelu)") == 2, names
    assert not any(name.startswith("aten::") for name in names), names
    assert recipe(y) == GELU


@case
def memory_that_is_away():
    """The inputs come back for it, as for any operator."""
    from firn import _autoload
    x = big(1, (1 << 20,))
    y = gelu(x)
    expected = y.cpu()
    _autoload.plugin().firn_torch_spill_all()
    assert make_again(y) == ""
    assert torch.equal(y.cpu(), expected)
    stands(y)


@case
def small_results_are_not_kept():
    from firn import _autoload
    x = big()
    y = gelu(x)
    assert keep(1 << 20)
    void(y, UNSEEN)                       # what was written between is not known
    none_of(torch.nn.functional.gelu(x))
    large = big(2, (1 << 18,))
    stands(gelu(large))
    assert _autoload.plugin().firn_torch_keep_recipes(1 << 20, 0) == 0
    none_of(torch.mm(large.view(512, 512), large.view(512, 512)))
    stands(gelu(large))
    assert _autoload.plugin().firn_torch_keep_recipes(0, 0) == 0
    none_of(torch.nn.functional.gelu(large))
    assert keep()


if __name__ == "__main__":
    sys.exit(main())
