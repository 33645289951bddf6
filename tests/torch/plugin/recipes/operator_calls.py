"""Calls of every operator on Firn's list of those whose results may be made again: CALLS has, for
each, a function of a tensor `x` and of `more` (which makes further tensors of x's type) that gives
tuples of arguments. A test compares its names with the list's.

INPUTS has the tensors that each gets: layouts, odd shapes.
"""

import itertools

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.uint8, torch.bool)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = FLOATS + INTEGERS + COMPLEX
DEVICE = "cuda"


def values(shape, dtype, seed=0):
    """The same on each device and in each run."""
    generator = torch.Generator().manual_seed(1000 + seed)
    if dtype == torch.bool:
        made = torch.rand(shape, generator=generator) > .5
    elif not dtype.is_floating_point and not dtype.is_complex:
        made = torch.randint(1, 7, shape, generator=generator).to(dtype)
    else:
        made = torch.randn(shape, generator=generator,
                           dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)
    return made.to(DEVICE)


def of(*shape):
    return lambda dtype: values(shape, dtype)


# Of any number of dimensions: for operators that take each element by itself.
INPUTS = {
    "contiguous": of(31, 37),
    "scalar": of(),
    "one": of(1),
    "empty": of(0, 3),
    "large": of(257, 1031),
    "channels last": lambda dtype: values((2, 3, 5, 7), dtype).to(
        memory_format=torch.channels_last),
    "transposed": lambda dtype: values((13, 29), dtype).t(),
    "permuted": lambda dtype: values((3, 11, 5), dtype).permute(2, 0, 1),
    "sliced": lambda dtype: values((17, 23), dtype)[3:, 5:19],
    "every second": lambda dtype: values((19, 22), dtype)[:, 1::2],
    "expanded": lambda dtype: values((1, 23), dtype).expand(7, 23),
    "one number everywhere": lambda dtype: values((), dtype).expand(5, 3),
    "five dimensions": of(2, 3, 2, 5, 3),
    "conjugated": lambda dtype: values((7, 11), dtype).conj() if dtype.is_complex else None,
    "negated": lambda dtype: values((7, 11), dtype).conj().imag if dtype.is_complex else None,
}
# For operators that want two dimensions and more, of lengths above 1.
ROWS = {
    "contiguous": of(31, 37), "large": of(67, 1031), "transposed": INPUTS["transposed"],
    "sliced": INPUTS["sliced"], "every second": INPUTS["every second"],
    "expanded": INPUTS["expanded"], "three dimensions": of(3, 5, 1024), "empty": of(0, 3),
    "permuted": INPUTS["permuted"],
}
IMAGES = {
    "contiguous": of(2, 4, 13, 11), "channels last": lambda dtype: values((2, 4, 13, 11), dtype).to(
        memory_format=torch.channels_last),
    "sliced": lambda dtype: values((3, 8, 15, 17), dtype)[1:, 2:6, 2:, 3:],
    "expanded": lambda dtype: values((1, 4, 9, 7), dtype).expand(3, 4, 9, 7),
    "one": of(1, 4, 5, 5),
}
MATRICES = {
    "contiguous": of(31, 37), "square": of(64, 64), "transposed": INPUTS["transposed"],
    "sliced": INPUTS["sliced"], "large": of(129, 257), "one row": of(1, 53),
}
BATCHES = {
    "contiguous": of(5, 7, 11),
    "permuted": lambda dtype: values((11, 5, 7), dtype).permute(1, 2, 0),
    "sliced": lambda dtype: values((6, 9, 13), dtype)[1:, 2:, 3:],
    "expanded": lambda dtype: values((1, 7, 11), dtype).expand(5, 7, 11),
}


class More:
    """Further tensors of a type: more(shape), and of others."""

    def __init__(self, dtype):
        self.dtype, self.seed = dtype, 0

    def __call__(self, *shape, dtype=None):
        self.seed += 1
        return values(shape, dtype or self.dtype, self.seed)


def alone(x, more):
    yield (x,)


def two(x, more):
    yield x, more(*x.shape)
    yield x, x
    yield x, more()                      # a scalar on the device
    yield x, more(*x.shape).cpu() if x.dim() == 0 else more().cpu()  # ... on the CPU
    if x.dim() > 1:
        yield x, more(*x.shape[1:])      # broadcast
        yield x, more(*reversed(x.shape)).permute(*reversed(range(x.dim())))


def with_number(x, more):
    yield x, 2
    yield x, 3.5 if x.dtype.is_floating_point else 5


def three(x, more):
    yield x, more(*x.shape), more(*x.shape)
    yield x, more(), more(*x.shape)


def scaled(name):
    def calls(x, more):
        yield from two(x, more)
        yield x, more(*x.shape), {name: 2}
    return calls


def matrix_calls(x, more):
    return more(x.shape[1], 29), more(19, x.shape[1]).t()


def mm(x, more):
    for other in matrix_calls(x, more):
        yield x, other


def addmm(x, more):
    for other in matrix_calls(x, more):
        yield more(other.shape[1]), x, other
        yield more(x.shape[0], other.shape[1]), x, other, {"beta": 2, "alpha": 3}
        yield more(1, 1).expand(x.shape[0], other.shape[1]), x, other, {"beta": 0}


def bmm(x, more):
    yield x, more(x.shape[0], x.shape[2], 13)
    yield x, more(x.shape[0], 13, x.shape[2]).transpose(1, 2)


def baddbmm(x, more):
    for x, other in bmm(x, more):
        yield more(x.shape[0], x.shape[1], 13), x, other
        yield more(13), x, other, {"beta": 2, "alpha": 3}


def convolution(x, more):
    channels = x.shape[1]
    plain = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    yield x, more(6, channels, 3, 3), more(6), *plain
    yield x, more(6, channels, 1, 1), None, *plain
    yield x, more(6, channels, 3, 3), None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1
    yield x, more(8, channels // 2, 3, 3), more(8), [1, 1], [2, 2], [2, 2], False, [0, 0], 2
    yield x, more(channels, 5, 3, 3), more(5), [2, 2], [1, 1], [1, 1], True, [1, 1], 1
    yield (x, more(6, channels, 3, 3).to(memory_format=torch.channels_last), more(6), *plain)


def norm_over(x, more):
    shape = list(x.shape[-1:])
    yield x, shape, more(*shape), more(*shape), 1e-5
    yield x, shape, None, None, 1e-5
    yield x, shape, more(*shape), None, 1e-3
    if x.dim() > 2:
        yield x, list(x.shape[-2:]), more(*x.shape[-2:]), more(*x.shape[-2:]), 1e-5


def rms_norm(x, more):
    shape = list(x.shape[-1:])
    yield x, shape, more(*shape), None
    yield x, shape, None, 1e-4


def group_norm(x, more):
    n, c, h, w = x.shape
    yield x, more(c), more(c), n, c, h * w, 2, 1e-5
    yield x, None, None, n, c, h * w, 4, 1e-5


def batch_norm(x, more):
    c = x.shape[1]
    yield x, more(c), more(c), more(c), more(c) * more(c), False, .1, 1e-5
    yield x, None, None, more(c), more(c) * more(c), False, .1, 1e-5
    yield x, more(c), more(c), None, None, True, .1, 1e-5


def softmax(x, more):
    yield x, -1, False
    yield x, 0, False
    if x.dtype == torch.float16:
        yield x, -1, True  # to float


def sums(x, more):
    yield x, [0], False
    yield x, [-1], True
    yield x, [0, 1], False
    if x.dtype.is_floating_point:
        yield x, [0], False, {"dtype": torch.float64}


def sum_all(x, more):
    yield (x,)
    if x.dtype.is_floating_point:
        yield x, {"dtype": torch.float64}


def extremes(x, more):
    if 0 in x.shape:
        return
    yield x, [0], False
    yield x, [-1], True


def clone(x, more):
    for memory_format in (torch.preserve_format, torch.contiguous_format):
        yield x, {"memory_format": memory_format}
    if x.dim() == 4:
        yield x, {"memory_format": torch.channels_last}


def to_copy(x, more):
    yield (x,)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        if dtype.is_complex or not x.dtype.is_complex:
            yield x, {"dtype": dtype}
    yield x, {"memory_format": torch.contiguous_format}


def concatenations(x, more):
    yield [x, more(*x.shape)],
    yield [x, x, more(*x.shape)], -1
    yield [x],
    yield [x] + [more(*x.shape) for _ in range(7)], 0


def stacks(x, more):
    yield [x, more(*x.shape)],
    yield [x, x, more(*x.shape)], -1


def pads(x, more):
    yield x, [1, 2]
    yield x, [1, 0, 2, 3], 1
    yield x, [-1, 2, 0, -1]


def indices_of(x, count=11):
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, max(x.shape[0], 1), (count,), generator=generator).to(DEVICE)


def embeddings(x, more):
    if x.dim() != 2 or x.shape[0] == 0:
        return
    yield x, indices_of(x)
    yield x, indices_of(x, 12).view(3, 4)
    yield x, indices_of(x).int(), 1
    yield x, indices_of(x)[2:], -1, True


def selections(x, more):
    if 0 in x.shape:
        return
    yield x, 0, indices_of(x)
    yield x, 0, indices_of(x)[::2]


def gathers(x, more):
    if 0 in x.shape:
        return
    where = torch.zeros(x.shape, dtype=torch.int64, device=DEVICE)
    yield x, 0, where
    yield x, 1, (where + x.shape[1] - 1)[:1]


def images_to(*calls):
    def of_images(x, more):
        for call in calls:
            yield x, *call
    return of_images


def masks(x, more):
    mask = more(*x.shape, dtype=torch.bool)
    yield x, mask, 3
    if x.dim() > 1:
        yield x, more(*x.shape[1:], dtype=torch.bool), 1


def masks_by_tensor(x, more):
    yield x, more(*x.shape, dtype=torch.bool), more()


def choices(x, more):
    condition = more(*x.shape, dtype=torch.bool)
    yield condition, x, more(*x.shape)
    yield condition, x, more()
    if x.dim() > 1:
        yield more(*x.shape[1:], dtype=torch.bool), more(*x.shape), x


def arguments(*calls):
    """x, and each of these."""
    def given(x, more):
        for call in calls:
            yield x, *call
    return given


def rows(calls):
    return calls, ROWS


def images(calls):
    return calls, IMAGES


plain_unary = ("abs bitwise_not ceil cos cosh erf erfc exp exp2 expm1 floor hardsigmoid hardswish "
               "isnan log log10 log1p log2 log_sigmoid_forward logical_not mish neg reciprocal "
               "relu round rsqrt sigmoid sign silu sin sinh sqrt tan tanh trunc").split()
CALLS = {
    **{f"aten::{name}": alone for name in plain_unary},
    **{f"aten::{name}.Tensor": two for name in
       "bitwise_and bitwise_or bitwise_xor div eq fmod ge gt le lt mul ne remainder".split()},
    **{f"aten::{name}.Scalar": with_number for name in "eq ge gt le lt ne".split()},
    **{f"aten::{name}": two for name in
       "atan2 logical_and logical_or logical_xor maximum minimum".split()},
    "aten::pow.Tensor_Tensor": two,
    "aten::pow.Tensor_Scalar": arguments((2,), (3,), (.5,), (-1,), (2.5,)),
    "aten::add.Tensor": scaled("alpha"), "aten::sub.Tensor": scaled("alpha"),
    "aten::rsub.Scalar": arguments((2,), (3, 2)),
    "aten::div.Tensor_mode": lambda x, more: (
        (x, more(*x.shape), {"rounding_mode": mode}) for mode in ("floor", "trunc", None)),
    "aten::addcdiv": three,
    "aten::addcmul": lambda x, more: (*three(x, more), (x, x, x, {"value": 3})),
    "aten::lerp.Tensor": three,
    "aten::lerp.Scalar": lambda x, more: ((x, more(*x.shape), .25),),
    "aten::where.self": choices,
    "aten::masked_fill.Scalar": masks, "aten::masked_fill.Tensor": masks_by_tensor,
    "aten::clamp": arguments((2,), (None, 3), (1, 4)),
    "aten::clamp.Tensor": lambda x, more: ((x, more(*x.shape)), (x, None, more(*x.shape)),
                                           (x, more(*x.shape), more(*x.shape))),
    "aten::clamp_min": arguments((1,)), "aten::clamp_max": arguments((1,)),
    "aten::gelu": lambda x, more: ((x,), (x, {"approximate": "tanh"})),
    "aten::elu": arguments((), (2., 3., .5)),
    "aten::leaky_relu": arguments((), (.3,)),
    "aten::hardtanh": arguments((), (-2, 2)),
    "aten::hardshrink": arguments((), (.7,)), "aten::softshrink": arguments((), (.7,)),
    "aten::softplus": arguments((), (2., 1.)),
    "aten::threshold": arguments((1, 0), (.5, 2)),
    "aten::logit": arguments((), (.1,)),
    "aten::_prelu_kernel": lambda x, more: ((x, more(*[1] * x.dim())), (x, more(*x.shape))),
    "aten::glu": ((lambda x, more: ((x, 1), )), {
        "contiguous": of(5, 6), "sliced": lambda dtype: values((9, 12), dtype)[1:, 2:],
        "channels last": IMAGES["channels last"], "large": of(33, 2048)}),
    "aten::clone": clone, "aten::_to_copy": to_copy, "aten::cat": rows(concatenations),
    "aten::stack": stacks, "aten::constant_pad_nd": rows(pads),
    "aten::embedding": rows(embeddings), "aten::index_select": rows(selections),
    "aten::gather": rows(gathers),
    "aten::flip": rows(arguments(([0],), ([0, 1],))),
    "aten::roll": rows(arguments(([3],), ([1, 2], [0, 1]))),
    "aten::repeat": rows(arguments(([2, 1, 3],), ([1, 1, 1],))),
    "aten::tril": rows(arguments((), (1,))), "aten::triu": rows(arguments((), (-1,))),
    "aten::upsample_nearest2d": images(images_to(([17, 9],), ([26, 22],))),
    "aten::upsample_bilinear2d": images(images_to(([17, 9], False), ([26, 22], True))),
    "aten::_softmax": rows(softmax), "aten::_log_softmax": rows(softmax),
    "aten::native_layer_norm": rows(norm_over), "aten::_fused_rms_norm": rows(rms_norm),
    "aten::native_group_norm": images(group_norm), "aten::native_batch_norm": images(batch_norm),
    "aten::sum": sum_all, "aten::mean": sum_all,
    "aten::sum.dim_IntList": rows(sums), "aten::mean.dim": rows(sums),
    "aten::amax": rows(extremes), "aten::amin": rows(extremes),
    "aten::max_pool2d_with_indices": images(images_to(
        ([3, 3],), ([3, 3], [2, 2], [1, 1]), ([2, 2], [1, 1], [0, 0], [2, 2], True))),
    "aten::avg_pool2d": images(images_to(([3, 3],), ([3, 2], [2, 1], [1, 1], True, False))),
    "aten::_adaptive_avg_pool2d": images(images_to(([1, 1],), ([3, 2],))),
    "aten::mm": (mm, MATRICES), "aten::addmm": (addmm, MATRICES),
    "aten::bmm": (bmm, BATCHES), "aten::baddbmm": (baddbmm, BATCHES),
    "aten::convolution": images(convolution),
}


# Every layout and every call for the first type that an operator has; for others as many.
FEW_LAYOUTS = ("contiguous", "sliced", "expanded", "conjugated", "permuted")
FEW_CALLS = 3


def calls_of(name, dtype, few=False):
    """(layout, arguments, keywords) of each call in CALLS; `few`: of some."""
    entry = CALLS[name]
    make, inputs = entry if isinstance(entry, tuple) else (entry, INPUTS)
    for layout, source in inputs.items():
        x = source(dtype) if not few or layout in FEW_LAYOUTS else None
        if x is None:
            continue
        calls = make(x, More(dtype))
        for call in itertools.islice(calls, FEW_CALLS) if few else calls:
            keywords = call[-1] if isinstance(call[-1], dict) else {}
            yield layout, call[:-1] if keywords else call, keywords
