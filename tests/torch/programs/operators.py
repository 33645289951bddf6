"""Operators that a random program draws, and what they are drawn for. Each is a function of a Draw
and of tensors on the CPU that gives a call: the call is then made twice, on the device's tensors
and on their shadows on the CPU, and has the same bits in both, as the software GPU runs the CPU's
kernels.

MAKES: the call's results are new tensors, or views of its operands. CHANGES: it writes its first
operand. Each gives None where it does not fit the operands."""

import dataclasses
import math

import torch

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, torch.float32, torch.float32, *INTEGERS, torch.bool, torch.complex64)


class Draw:
    """What `random` draws, in shapes that are wanted here."""

    def __init__(self, random):
        self.random = random

    def below(self, n):
        return self.random.randrange(n)

    def one_in(self, n):
        return self.random.randrange(n) == 0

    def of(self, choices):
        return choices[self.random.randrange(len(choices))]

    def dimension(self, tensor):
        return self.below(tensor.dim())

    def shape(self, numbers):
        """About so many elements, in one to four dimensions."""
        shape, left = [], max(1, numbers)
        for _ in range(self.below(4)):
            part = int(math.exp(self.random.random() * math.log(max(2, min(left, 64)))))
            shape.append(max(1, part))
            left = max(1, left // shape[-1])
        shape.insert(self.below(len(shape) + 1), left)
        return shape

    def number(self, dtype):
        if dtype == torch.bool:
            return bool(self.below(2))
        if dtype.is_floating_point or dtype.is_complex:
            return self.below(64) / 8 - 4
        return self.below(7) if dtype == torch.uint8 else self.below(13) - 6

    def mask(self, shape):
        return torch.rand(shape, generator=self.generator()) < 0.4

    def generator(self):
        return torch.Generator().manual_seed(self.random.getrandbits(48))

    def fresh(self, size):
        """A tensor of the CPU's of about so many bytes: a random shape, dtype and contents."""
        dtype, generator = self.of(DTYPES), self.generator()
        shape = self.shape(-(-size // dtype.itemsize))
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(shape, generator=generator).to(dtype)
        most = 2 if dtype == torch.bool else 120
        return torch.randint(0, most, shape, generator=generator).to(dtype)


def on(tensor, like):
    """A constant of the CPU's, where `like` is."""
    return tensor.to(like.device)


# Views.

def narrow(draw, x):
    dim = draw.dimension(x)
    begin = draw.below(x.shape[dim])
    length = 1 + draw.below(x.shape[dim] - begin)
    return lambda x: x.narrow(dim, begin, length)


def steps(draw, x):
    dim = draw.dimension(x)
    step = 2 + draw.below(3)
    index = (*[slice(None)] * dim, slice(draw.below(step), None, step))
    return (lambda x: x[index]) if x.shape[dim] > step else None


def transpose(draw, x):
    one, other = draw.dimension(x), draw.dimension(x)
    return lambda x: x.transpose(one, other)


def flattened(draw, x):
    return (lambda x: x.view(-1)) if x.is_contiguous() else (lambda x: x.reshape(-1))


def select(draw, x):
    dim = draw.dimension(x)
    index = draw.below(x.shape[dim])
    return (lambda x: x.select(dim, index)) if x.dim() > 1 else None


def chunk(draw, x):
    dim, count = draw.dimension(x), 2 + draw.below(3)
    return lambda x: x.chunk(count, dim)


def diagonal(draw, x):
    return (lambda x: x.diagonal()) if x.dim() > 1 else None


def expand(draw, x):
    most = max(1, (1 << 16) // max(1, x.numel()))
    times = 1 + draw.below(min(4, most))
    return lambda x: x.unsqueeze(0).expand(times, *x.shape)


def other_type(draw, x):
    to = {torch.float32: torch.int32, torch.int32: torch.float32, torch.int16: torch.float16,
          torch.float64: torch.int64, torch.bfloat16: torch.int16, torch.int8: torch.uint8}
    return (lambda x: x.view(to[x.dtype])) if x.dtype in to else None


def parts(draw, x):
    return torch.view_as_real if x.dtype == torch.complex64 else None


# New tensors of one.

def converted(draw, x):
    dtype = draw.of(DTYPES if x.dtype != torch.complex64 else (torch.complex64,))
    # (Of what no integer can be, conversion gives whatever the processor does.)
    if x.dtype.is_floating_point and not dtype.is_floating_point and dtype != torch.complex64:
        return lambda x: x.nan_to_num(0, 0, 0).clamp(0, 100).to(dtype)
    return lambda x: x.to(dtype, copy=True)


def copied(draw, x):
    return draw.of((lambda x: x.clone(), lambda x: x.contiguous().clone(), torch.zeros_like,
                    lambda x: x.flip(0)))


def one_number(draw, x):
    if x.dtype == torch.bool:
        return torch.logical_not
    number = draw.number(x.dtype)
    return draw.of((lambda x: x + number, lambda x: x * number, lambda x: number - x))


def smooth(draw, x):
    if x.dtype not in FLOATS:
        return None
    return draw.of((torch.sigmoid, torch.tanh, torch.exp, torch.sqrt, torch.relu, torch.sin,
                    torch.nn.functional.gelu, torch.reciprocal))


def sums(draw, x):
    dim = draw.dimension(x)
    if x.dtype in (torch.complex64, torch.bool):
        return None
    return draw.of((lambda x: x.sum(dim), lambda x: x.amax(dim), lambda x: x.sum(),
                    lambda x: x.cumsum(dim), lambda x: x.sort(dim=dim, stable=True)[0],
                    lambda x: x.argmin(dim)))


def soft(draw, x):
    dim = draw.dimension(x)
    if x.dtype not in (torch.float32, torch.float64):
        return None
    return draw.of((lambda x: x.softmax(dim), lambda x: x.log_softmax(dim), lambda x: x.mean(dim)))


def rolled(draw, x):
    dim, by = draw.dimension(x), draw.below(99)
    return lambda x: x.roll(by, dim)


def repeated(draw, x):
    return (lambda x: x.repeat(2, *[1] * (x.dim() - 1))) if x.numel() < 1 << 16 else None


def picked(draw, x):
    dim = draw.dimension(x)
    count = 1 + draw.below(x.shape[dim])
    index = torch.randint(0, x.shape[dim], (count,), generator=draw.generator())
    return lambda x: x.index_select(dim, on(index, x))


def masked(draw, x):
    mask = draw.mask(x.shape)
    return lambda x: x.masked_select(on(mask, x))  # waits for the device


def triangle(draw, x):
    return (lambda x: x.tril()) if x.dim() > 1 else None


# New tensors of two or several.

def two(draw, x, y):
    if x.shape != y.shape or x.dtype != y.dtype:
        return None
    if x.dtype == torch.bool:
        return draw.of((torch.logical_and, torch.logical_xor))
    if x.dtype == torch.complex64:
        return torch.add
    mask = draw.mask(x.shape)
    return draw.of((torch.add, torch.sub, torch.mul, torch.maximum, torch.lt, torch.eq,
                    lambda x, y: torch.where(on(mask, x), x, y), lambda x, y: torch.stack((x, y))))


def joined(draw, x, y):
    if x.dtype != y.dtype:
        return None
    return lambda x, y: torch.cat((x.reshape(-1), y.reshape(-1), x.reshape(-1)[:5]))


def product(draw, x, y):
    """Of small whole numbers: exact, whatever the order of the sums."""
    side = min(128, math.isqrt(min(x.numel(), y.numel())))

    def square(x):
        return x.reshape(-1)[:side * side].view(side, side).remainder(5).to(torch.float32)

    return (lambda x, y: square(x) @ square(y)) if x.dtype in INTEGERS and \
        y.dtype in INTEGERS and side > 0 else None


def gradient(draw, x, y):
    """Through autograd's own threads."""
    if x.shape != y.shape or x.dtype != y.dtype or x.dtype not in (torch.float32, torch.float64):
        return None

    def call(x, y):
        x, y = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
        (x * x * y + torch.relu(y) * 3).sum().backward()
        return x.grad, y.grad

    return call


def lists(draw, *many):
    same = [x for x in many if x.dtype == many[0].dtype and x.dtype in FLOATS]
    if len(same) < len(many):
        return None
    number = draw.number(torch.float32)
    return draw.of((lambda *many: torch._foreach_mul(list(many), number),
                    lambda *many: torch._foreach_neg(list(many))))


# What is written in place.

def numbers_in_place(draw, x):
    if x.dtype == torch.bool:
        return lambda x: x.logical_not_()
    number = draw.number(x.dtype)
    return draw.of((lambda x: x.add_(number), lambda x: x.mul_(number), lambda x: x.fill_(number),
                    lambda x: x.zero_(), lambda x: x.neg_()))


def two_in_place(draw, x, y):
    if x.shape != y.shape:
        return None
    if x.dtype == y.dtype and x.dtype in FLOATS:
        return draw.of((lambda x, y: x.add_(y), lambda x, y: x.copy_(y), lambda x, y: x.mul_(y),
                        lambda x, y: torch.sub(y, y, out=x)))
    fits = torch.can_cast(y.dtype, x.dtype) and x.dtype != torch.complex64
    return (lambda x, y: x.copy_(y)) if fits else None


def filled(draw, x):
    if x.dtype == torch.complex64:
        return None
    mask, number = draw.mask(x.shape), draw.number(x.dtype)
    return lambda x: x.masked_fill_(on(mask, x), number)


def part_filled(draw, x):
    dim = draw.dimension(x)
    index, number = draw.below(x.shape[dim]), draw.number(x.dtype)
    return lambda x: x.select(dim, index).fill_(number)


def scattered(draw, x):
    dim = draw.dimension(x)
    index = torch.randperm(x.shape[dim], generator=draw.generator())[:1 + draw.below(8)]
    source = torch.ones([*x.shape[:dim], len(index), *x.shape[dim + 1:]], dtype=x.dtype)
    return lambda x: x.index_copy_(dim, on(index, x), on(source, x))


def lists_in_place(draw, *many):
    if any(x.dtype not in FLOATS or x.dtype != many[0].dtype for x in many):
        return None
    number = draw.number(torch.float32)
    return lambda *many: torch._foreach_add_(list(many), number)


@dataclasses.dataclass
class Operator:
    name: str
    build: object
    operands: int
    changes: int = 0  # so many of its operands, from the first on
    weight: int = 1


MAKES = [*(Operator(each.__name__, each, 1) for each in (
    narrow, steps, transpose, flattened, select, chunk, diagonal, expand, other_type, parts,
    converted, copied, one_number, smooth, sums, soft, rolled, repeated, picked, masked,
    triangle)),
    *(Operator(each.__name__, each, 2, weight=3) for each in (two, joined, product, gradient)),
    Operator("lists", lists, 4, weight=2)]
CHANGES = [*(Operator(each.__name__, each, 1, 1, 3) for each in (
    numbers_in_place, filled, part_filled, scattered)),
    Operator("two_in_place", two_in_place, 2, 1, 6),
    Operator("lists_in_place", lists_in_place, 4, 4, 2)]


def may_change(x):
    """Written in place: no two of its elements lie at one place."""
    return all(stride != 0 or size <= 1 for size, stride in zip(x.shape, x.stride()))
