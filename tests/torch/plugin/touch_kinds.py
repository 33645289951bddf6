"""Tensors that are not plain, for touch_cases.py."""

KINDS = {
    "sparse coo": """
        n = torch.arange(BIG, device="cuda")
        c = torch.sparse_coo_tensor(torch.stack([n // 512, n % 512]), big(), (512, 512),
                                    is_coalesced=True)
        del n
        # Results and what they are made of, by way of the host: all that the software GPU can do.
        flat = lambda s: (s._indices(), s._values())
        show(*flat(c), *flat(c * 2), *flat(c.half()), *flat(-c), *flat(torch.relu(c)),
             *flat(c[3]), *flat(c.clone()), c.cpu().to_dense(), *flat(c.cpu().cuda()))
        c.values().mul_(2)
        c._indices().add_(0)
        show(c.cpu().to_dense(), *flat(c.clone().zero_()))
    """,
    "sparse compressed": """
        for layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
            blocks = layout in (torch.sparse_bsr, torch.sparse_bsc)
            count = BIG // 4 if blocks else BIG
            line = 256 if blocks else 512
            values = big().view(-1, 2, 2) if blocks else big()
            s = torch.sparse_compressed_tensor(
                torch.arange(0, count + 1, line, device="cuda"),
                torch.arange(count, device="cuda") % line, values, (512, 512), layout=layout)
            del values
            rows = layout in (torch.sparse_csr, torch.sparse_bsr)
            show(s.values(), s.crow_indices() if rows else s.ccol_indices(),
                 s.col_indices() if rows else s.row_indices(), s.to_dense(), s.sum(),
                 (s * 2).values(), (s + s).values(), torch.sin(s).to_dense(), s.half().values(),
                 s.clone().neg_().values(), s.cpu().to_dense(), s.cpu().cuda().to_dense())
            s.values().mul_(2)
            show(s.to_dense())
    """,
    "nested, strided": """
        n = torch.nested.nested_tensor([rand(1000, 600), rand(512, 600)])
        m = torch.nested.as_nested_tensor([rand(1000, 600), rand(512, 600)])
        show(n.values(), *(n * 2 + m).unbind(), *torch.relu(n).unbind(), *n.unbind(),
             *n.transpose(1, 2).unbind(), *torch.nn.functional.linear(n, rand(500, 600)).unbind(),
             *torch.softmax(n, -1).unbind(), *n.half().unbind(), *n.cpu().unbind(),
             *[part.contiguous() for part in n.chunk(2, -1)[1].unbind()])
        n.fill_(2)
        show(*n.unbind())
    """,
    "nested, jagged": """
        parts = [rand(1000, 500, requires_grad=True), rand(700, 500)]
        n = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
        y = torch.nn.functional.linear(n, rand(512, 500)).sin() * 2
        show(n.values(), n.offsets(), y.values(), y.to_padded_tensor(0.0), *n.unbind())
        y.values().sum().backward()
        show(n.grad.values())
    """,
    "fake tensors": """
        from torch._subclasses.fake_tensor import FakeTensorMode
        x = big()
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            f = mode.from_tensor(x)
            g = (f.view(512, 512) @ f.view(512, 512)).sum(0)
            s = f * 2
            h = torch.zeros(BIG, device="cuda") + f
        print(tuple(g.shape), g.device, h.device, s.dtype)
        show(x)
    """,
    "meta and zero tensors": """
        m = torch.empty(BIG, device="meta")
        z = torch._efficientzerotensor((BIG,), device="cuda")
        show(big() + z, z * big())
        print(tuple((m + m).shape))
    """,
    "subclass with __torch_function__": """
        class Logged(torch.Tensor):
            calls = 0
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                cls.calls += 1
                return super().__torch_function__(function, types, args, kwargs or {})
        x = big().as_subclass(Logged)
        y = x * 2 + x.sort()[0]
        y += torch.cat([x[:1], x[1:]])
        print(type(y).__name__, Logged.calls > 4)
        show(y.as_subclass(torch.Tensor))
    """,
    "wrapper subclass with __torch_dispatch__": """
        from torch.utils._pytree import tree_map
        class Pair(torch.Tensor):
            @staticmethod
            def __new__(cls, a, b):
                return torch.Tensor._make_wrapper_subclass(
                    cls, a.shape, dtype=a.dtype, device=a.device, requires_grad=False)
            def __init__(self, a, b):
                self.a, self.b = a, b
            @classmethod
            def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
                side = lambda n: lambda t: getattr(t, n) if isinstance(t, cls) else t
                one = function(*tree_map(side("a"), args), **tree_map(side("a"), kwargs or {}))
                two = function(*tree_map(side("b"), args), **tree_map(side("b"), kwargs or {}))
                return Pair(one, two) if isinstance(one, torch.Tensor) else one
        p = Pair(big(), big(7))
        q = (p * 2 + p.sin()).cumsum(0)
        q.add_(p)
        r = torch.cat([q, p])
        show(q.a, q.b, r.a, r.b)
    """,
    "wrapper that names its device, layout and sizes by itself": """
        class Odd(torch.Tensor):
            asked = 0
            @staticmethod
            def __new__(cls, inner, layout):
                return torch.Tensor._make_wrapper_subclass(
                    cls, inner.shape, dtype=inner.dtype, device=inner.device, layout=layout,
                    dispatch_device=True, dispatch_layout=True,
                    dispatch_sizes_strides_policy="sizes")
            def __init__(self, inner, layout):
                self.inner, self.kind = inner, layout
            @classmethod
            def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
                Odd.asked += 1
                if function is torch.ops.prim.device.default:
                    return args[0].inner.device
                if function is torch.ops.prim.layout.default:
                    return args[0].kind
                if function in (torch.ops.aten.size.default, torch.ops.aten.sym_size.default):
                    return args[0].inner.shape
                if function in (torch.ops.aten.stride.default, torch.ops.aten.sym_stride.default):
                    return args[0].inner.stride()
                if function is torch.ops.aten.dim.default:
                    return args[0].inner.dim()
                args = [a.inner if isinstance(a, Odd) else a for a in args]
                return Odd(function(*args, **(kwargs or {})), torch.sparse_csr)
        for layout in (torch.strided, torch.sparse_coo, torch.sparse_csr):
            y = torch.ops.aten.mul.Tensor(Odd(big(), layout), 2.0)
            show(y.inner)
        print(Odd.asked)
    """,
    "subclass with storage and __torch_dispatch__": """
        class Own(torch.Tensor):
            @classmethod
            def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
                with torch._C._DisableTorchDispatch():
                    return function(*args, **(kwargs or {}))
        x = torch.Tensor._make_subclass(Own, big())
        show(x * 2, x.sort()[0], torch.matmul(x.view(512, 512), big().view(512, 512)))
    """,
    "masked tensors": """
        from torch.masked import masked_tensor
        m = masked_tensor(big(), big() > 300)
        show((m * 2).sum().get_data(), m.get_data(), m.amax().get_data(), (m + m).get_data())
    """,
}
