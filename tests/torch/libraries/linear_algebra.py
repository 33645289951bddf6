"""Decompositions, solvers and Fourier transforms, with derivatives through some of them."""

import torch

import job
import report


def main():
    args = job.arguments(__doc__, size=900)
    a = torch.randn(args.size, args.size, device="cuda", dtype=torch.float64)
    b = torch.randn(args.size, 64, device="cuda", dtype=torch.float64)
    for step in range(args.steps):
        x = a.clone().requires_grad_()
        positive = x @ x.T + args.size * torch.eye(args.size, device="cuda", dtype=x.dtype)
        factor = torch.linalg.cholesky(positive)
        solved = torch.cholesky_solve(b, factor)
        loss = solved.square().sum() + torch.logdet(positive) / args.size
        loss.backward()
        q, r = torch.linalg.qr(x.grad)
        values, vectors = torch.linalg.eigh(positive.detach())
        spectrum = torch.fft.rfft2(q)
        a = torch.fft.irfft2(spectrum * .5, s=a.shape) + (vectors * values.rsqrt()) @ vectors.T
        a = a + torch.linalg.solve(r + torch.eye(args.size, device="cuda", dtype=x.dtype), a)
        report.loss(step, loss)
    report.finish([a])


if __name__ == "__main__":
    main()
