"""Ways in which a program may use device memory: each piece prints the same with the native
allocator and with Firn, wherever its tensors' bytes are. For fork_cases.py.

Tensors of 1 MiB and more: smaller ones do not spill. BIG float32 numbers are 1 MiB.
"""

from touch_kinds import KINDS
from touch_storages import STORAGES
from touch_ways import WAYS

FRAME = """
import hashlib, torch
torch.manual_seed(1)
torch.use_deterministic_algorithms(True, warn_only=True)
import warnings
warnings.simplefilter("ignore")
BIG = 1 << 18
def big(n=0.0):
    return torch.arange(BIG, device="cuda", dtype=torch.float32).add_(n).remainder_(1009)
def rand(*size, **options):
    return torch.rand(*(size or (BIG,)), device="cuda", **options)
def bare_address(t):
    "Without asking torch for it: what the storage's first member, a c10::DataPtr, points at."
    import ctypes
    return ctypes.c_void_p.from_address(t.untyped_storage()._cdata + 16).value
def show(*tensors):
    for t in tensors:
        if t is None:
            print(None)
            continue
        t = t.detach().cpu().contiguous()
        if t.is_conj():
            t = t.resolve_conj()
        data = t.flatten().view(torch.uint8).numpy().data
        print(tuple(t.shape), t.dtype, hashlib.sha256(data).hexdigest()[:16])
"""

# Tensors within other things.
WITHIN = {
    "lists": """
        xs = [big(i) for i in range(4)]
        show(torch.cat(xs), torch.stack(xs[:2]), torch.hstack(xs), torch.block_diag(
            *[x[:1000] for x in xs]), *torch.broadcast_tensors(xs[0], xs[1][:1]))
        show(torch.linalg.multi_dot([x.view(512, 512)[:50, :50] for x in xs]),
             torch.cartesian_prod(xs[0][:600], xs[1][:600]))
        torch._foreach_copy_(xs[:2], xs[2:])
        show(*xs)
    """,
    "optional tensors": """
        x, w, b = big(), big(1), big(2)
        show(torch.clamp(x, min=w, max=b), torch.bucketize(x, b.sort()[0]),
             torch.nn.functional.linear(x.view(512, 512), w.view(512, 512),
                                        b.view(512, 512)[0]))
        show(torch.bincount(x.long(), weights=w), torch.histc(x, 64),
             torch.nn.functional.binary_cross_entropy(x / 1009, w / 1009, weight=b),
             torch.nn.functional.layer_norm(x, (BIG,), w, b),
             torch.searchsorted(w.sort()[0], x, sorter=torch.arange(BIG, device="cuda")))
        y = torch.nn.functional.batch_norm(x.view(1, BIG, 1).expand(2, -1, -1), w.clone(),
                                           b.clone(), b, w, training=True)
        show(y)
        show(torch.repeat_interleave(x, (w % 3).long()), torch.diff(x, prepend=w, append=b))
    """,
    "lists of optional tensors": """
        x = big().view(512, 512)
        many = (rand(BIG) * 512).long()
        rows = many[:512]
        show(x[:, rows], x[rows], x[many.view(512, 512), None, 3:4], x[None, x > 500])
        show(x.flatten()[many], x.flatten().index_select(0, many))
        y = x.clone()
        y[:, rows % 7] = x[:, :1]
        torch.ops.aten.index_put_(y, [None, rows], x[0], True)
        y.index_put_((many, many), x.flatten(), accumulate=True)
        y[x > 900] = 0
        show(y, y[..., rows], y[None, :, rows])
    """,
    "out arguments": """
        x, y = big(), big(3)
        out, values, indices = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x).long()
        torch.mul(x, y, out=out)
        torch.sort(x, out=(values, indices))
        show(out, values, indices)
        torch.cat([x, y], out=out)        # resized
        torch.add(x, y, out=x)
        torch.matmul(x.view(512, 512), y.view(512, 512), out=values.view(512, 512))
        torch.cumsum(y, 0, out=y[:])
        show(out, x, y, values)
        torch.max(x.view(512, 512), 1, out=(values[:512], indices[:512]))
        torch.linalg.qr(x.view(512, 512)[:300, :300], out=(values[:90000].view(300, 300),
                                                             out[:90000].view(300, 300)))
        show(values[:512], indices[:512])
    """,
    "tuples and named results": """
        x = big().view(512, 512)
        u = torch.linalg.svd(x[:200, :200])
        show(u.S, *torch.var_mean(x), *torch.aminmax(x), *x.mode(1), *x.kthvalue(5),
             *torch.frexp(x), *x.unique(return_counts=True, return_inverse=True), *x.cummax(0))
        a, b = torch.ops.aten.split_with_sizes_copy(x, [500, 12])
        show(a, b, *torch.unbind_copy(x[:3]))
    """,
    "complex and conjugates": """
        x = torch.complex(big(), big(1))
        show(x.conj(), x.conj() * x, x.real, x.imag, x.mH if x.dim() > 1 else x, x.abs(),
             torch.view_as_real(x), x.conj().imag.neg(), torch.fft.fft(x[:4096]))
        x.real.mul_(2)
        show(x)
    """,
    "dicts in an operator of one's own": """
        library = torch.library.Library("firn_test", "FRAGMENT")
        library.define("sum_of(Dict(str, Tensor) named, Tensor?[] some) -> Tensor")
        seen = []
        def sum_of(named, some):
            # As a kernel would: by address, not by another operator.
            import ctypes
            torch.cuda.synchronize()
            total = 0.0
            for t in list(named.values()) + [t for t in some if t is not None]:
                total += sum((ctypes.c_float * 8).from_address(bare_address(t)))
            return torch.full((4,), total, device="cuda")
        library.impl("sum_of", sum_of, "CUDA")
        xs = [big(i) for i in range(4)]
        show(torch.ops.firn_test.sum_of({"a": xs[0], "b": xs[1]}, [None, xs[2], xs[3]]))
    """,
}

GROUPS = {"WITHIN": WITHIN, "KINDS": KINDS, "WAYS": WAYS, "STORAGES": STORAGES}
