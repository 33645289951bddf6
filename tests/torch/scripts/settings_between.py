"""Products by a kernel whose result depends on every one of torch's settings for products, which
change between a result's making and its use."""

import sys

import torch

import report

matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
library_now = torch.backends.cuda.preferred_blas_library


def settings():
    """All of them, as they are now."""
    return {"matmul": matmul.fp32_precision == "tf32", "conv": cudnn.conv.fp32_precision == "tf32",
            "rnn": cudnn.rnn.fp32_precision == "tf32",
            "fp16 reduction": matmul.allow_fp16_reduced_precision_reduction,
            "bf16 reduction": matmul.allow_bf16_reduced_precision_reduction,
            "fp16 split": matmul.allow_fp16_reduced_precision_reduction_split_k,
            "bf16 split": matmul.allow_bf16_reduced_precision_reduction_split_k,
            "accumulation": matmul.allow_fp16_accumulation,
            "cudnn": cudnn.enabled, "deterministic": cudnn.deterministic,
            "library": library_now() == torch._C._BlasBackend.Cublaslt}


def number():
    """The settings as one."""
    return sum(2.0 ** -i for i, on in enumerate(settings().values()) if on)


runs = 0


def product(a, b):
    global runs
    runs += 1
    return torch.bmm(a[None], b[None])[0] * (1 + number())


def attribute(where, name, value):
    before = getattr(where, name)
    return (lambda: setattr(where, name, value)), (lambda: setattr(where, name, before))


CHANGES = [attribute(matmul, "fp32_precision", "tf32"), attribute(matmul, "fp32_precision", "ieee"),
           attribute(torch.backends, "fp32_precision", "tf32"),
           attribute(cudnn.conv, "fp32_precision", "ieee"),
           attribute(cudnn.rnn, "fp32_precision", "ieee"),
           attribute(matmul, "allow_fp16_reduced_precision_reduction", (False, False)),
           attribute(matmul, "allow_bf16_reduced_precision_reduction", (False, True)),
           attribute(matmul, "allow_fp16_accumulation", True), attribute(cudnn, "enabled", False),
           attribute(cudnn, "deterministic", True),
           (lambda: library_now("cublaslt"), lambda: library_now("cublas"))]


def main():
    replaced = torch.library.Library("aten", "IMPL")
    replaced.impl("mm", product, "CUDA")
    replaced.impl("mm.out", lambda a, b, *, out: out.copy_(product(a, b)), "CUDA")
    torch.manual_seed(0)
    x, weight = torch.randn(1024, 256, device="cuda"), torch.randn(256, 512, device="cuda")
    for step, (change, undo) in enumerate(CHANGES):
        change()
        report.loss(step, number())
        y = x @ weight
        undo()
        cudnn.benchmark = True
        report.loss(step, (y + 1).square().mean())   # y is made by what was changed
        assert cudnn.benchmark
        cudnn.benchmark = False
        before = settings()
        report.loss(step, number())
        # Does a setting still follow the one above it?
        for name in ("tf32", "none"):
            torch.backends.fp32_precision = name
            report.loss(step, float(matmul.fp32_precision == "tf32"))
        assert settings() == before
        z = x @ weight
        change()
        report.loss(step, (z + 1).square().mean())   # and z by what was there before
        undo()
    print(f"products {runs}", file=sys.stderr)
    report.finish([x, weight])


if __name__ == "__main__":
    main()
