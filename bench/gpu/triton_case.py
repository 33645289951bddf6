"""A gated activation in raw Triton, with its backward. (Triton reads a kernel's source: it has to
be in a file.)"""

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def forward_kernel(x, out, half, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    row, column = at // half, at % half
    gate = tl.load(x + row * 2 * half + column, inside)
    value = tl.load(x + row * 2 * half + half + column, inside)
    tl.store(out + at, gate * tl.sigmoid(gate) * value, inside)


@triton.jit
def backward_kernel(x, grad, out, half, count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    row, column = at // half, at % half
    gate = tl.load(x + row * 2 * half + column, inside)
    value = tl.load(x + row * 2 * half + half + column, inside)
    come = tl.load(grad + at, inside)
    share = tl.sigmoid(gate)
    tl.store(out + row * 2 * half + column,
             come * value * (share + gate * share * (1 - share)), inside)
    tl.store(out + row * 2 * half + half + column, come * gate * share, inside)


class Gated(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        half = x.shape[1] // 2
        out = x.new_empty(x.shape[0], half)
        forward_kernel[(triton.cdiv(out.numel(), BLOCK),)](x, out, half, out.numel(), BLOCK=BLOCK)
        return out

    @staticmethod
    def backward(context, grad):
        (x,) = context.saved_tensors
        out, grad = torch.empty_like(x), grad.contiguous()
        backward_kernel[(triton.cdiv(grad.numel(), BLOCK),)](
            x, grad, out, grad.shape[1], grad.numel(), BLOCK=BLOCK)
        return out


gated = Gated.apply
