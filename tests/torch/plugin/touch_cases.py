"""Ways in which a program may use device memory: each piece prints the same with the native
allocator and with Firn, wherever its tensors' bytes are. For fork_cases.py.

Tensors of 1 MiB and more: smaller ones do not spill. BIG float32 numbers are 1 MiB.
"""

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

# Tensors that are not plain.
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

# What runs operators on the program's behalf.
WAYS = {
    "vmap": """
        from torch.func import vmap
        x = big().view(512, 512)
        show(vmap(torch.sort)(x)[0], vmap(lambda a, b: a @ b, (0, None))(x, x),
             vmap(vmap(lambda t: t * 2 + 1))(x), vmap(lambda i, t: t.index_select(0, i), (0, None))(
                 (x[:4, :512] % 512).long(), x[0]),
             vmap(torch.nn.functional.softmax, in_dims=(0, None))(x, 0),
             vmap(lambda t: t.sum(), chunk_size=100)(x))
    """,
    "grad, vjp, jvp, jacobians": """
        from torch.func import grad, vjp, jvp, jacrev, hessian, linearize, grad_and_value
        x = big() / 1000
        show(grad(lambda t: t.sin().pow(2).sum())(x), *grad_and_value(lambda t: (t * t).sum())(x))
        y, back = vjp(lambda t: t.exp() * 2, x)
        show(y, *back(x), *jvp(lambda t: t.tanh() * t, (x,), (x.cos(),)),
             jacrev(lambda t: t[:8] * t[8:16])(x),
             grad(lambda t: grad(lambda u: (u ** 3).sum())(t).sum())(x),
             hessian(lambda t: (t ** 3).sum())(x[:20]))
        y, f = linearize(torch.sin, x)
        show(y, f(x))
    """,
    "forward mode": """
        import torch.autograd.forward_ad as fwad
        x = big() / 1000
        with fwad.dual_level():
            d = fwad.make_dual(x, x.cos())
            y = (d.exp() * d).cumsum(0)
            show(*fwad.unpack_dual(y))
    """,
    "functional_call and stacks of modules": """
        from torch.func import functional_call, stack_module_state, vmap, grad
        models = [torch.nn.Linear(600, 512).cuda() for _ in range(3)]
        parameters, buffers = stack_module_state(models)
        base = torch.nn.Linear(600, 512, device="meta")
        call = lambda p, b, x: functional_call(base, (p, b), (x,))
        x = rand(1000, 600)
        show(vmap(call, (0, 0, None))(parameters, buffers, x))
        one = {name: p.detach() for name, p in models[0].named_parameters()}
        g = grad(lambda p: functional_call(models[0], p, (x,)).square().sum())(one)
        show(*g.values())
        per_sample = vmap(grad(lambda p, t: functional_call(models[0], p, (t,)).sum()), (None, 0))
        show(*per_sample(one, x[:7]).values())
    """,
    "functionalize": """
        from torch.func import functionalize
        def f(x):
            y = x.clone()
            y[::2].mul_(3)
            y.view(512, 512).t_().add_(1)
            return y
        show(functionalize(f)(big()), f(big()))
    """,
    "checkpoint, both kinds": """
        from torch.utils.checkpoint import checkpoint, checkpoint_sequential
        net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.GELU(),
                                                        torch.nn.Dropout(0.1))
                                    for _ in range(4)]).cuda()
        for reentrant in (False, True):
            torch.manual_seed(5)
            x = rand(600, 600, requires_grad=True)
            y = checkpoint(net[0], x, use_reentrant=reentrant)
            y = checkpoint(net[1], y, use_reentrant=reentrant, preserve_rng_state=True)
            checkpoint_sequential(net[2:], 2, y, use_reentrant=reentrant).sum().backward()
            show(x.grad, *[p.grad for p in net.parameters()])
            net.zero_grad()
        from torch.utils.checkpoint import create_selective_checkpoint_contexts as contexts
        x = rand(600, 600, requires_grad=True)
        checkpoint(net, x, use_reentrant=False, context_fn=lambda: contexts(
            [torch.ops.aten.addmm.default])).sum().backward()
        show(x.grad)
    """,
    "saved tensors' hooks": """
        from torch.autograd.graph import saved_tensors_hooks, save_on_cpu
        for hooks in (saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()),
                      saved_tensors_hooks(lambda t: (t.clone(), t), lambda p: p[0]),
                      save_on_cpu(), save_on_cpu(pin_memory=True)):
            x = rand(BIG, requires_grad=True)
            with hooks:
                y = (x * x).exp() * x.sin()
            y.sum().backward()
            show(x.grad)
    """,
    "hooks": """
        seen = []
        net = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.ReLU(),
                                  torch.nn.Linear(600, 600)).cuda()
        net[0].register_forward_pre_hook(lambda m, a: (a[0] * 2,))
        net[0].register_forward_hook(lambda m, a, out: out + a[0])
        net[2].register_full_backward_hook(lambda m, gi, go: tuple(g * 3 for g in gi))
        net[2].register_full_backward_pre_hook(lambda m, go: (go[0] + 1,))
        net[0].weight.register_hook(lambda g: g.clamp(max=5))
        def step(p):
            p.data.add_(p.grad, alpha=-0.1)
            p.grad = None
        for p in net.parameters():
            p.register_post_accumulate_grad_hook(step)
        x = rand(600, 600, requires_grad=True)
        x.register_hook(lambda g: seen.append(g * 2))
        h = net[1](net[0](x))
        h.retain_grad()
        h.grad_fn.register_hook(lambda gi, go: seen.append(go[0].clone()))
        net[2](h).sum().backward()
        show(*net.parameters(), x.grad, h.grad, *seen)
    """,
    "graphs of autograd": """
        class Two(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                ctx.kept = a * 2           # kept by Python, not by autograd
                ctx.mark_non_differentiable(out := a > b)
                return a * b, out
            @staticmethod
            def backward(ctx, g, _):
                a, b = ctx.saved_tensors
                return g * b + ctx.kept, g * a
            @staticmethod
            def vmap(info, dims, a, b):
                return Two.apply(a, b), (dims[0], dims[0])
        a, b = rand(BIG, requires_grad=True), rand(BIG, requires_grad=True)
        y, _ = Two.apply(a, b)
        (first,) = torch.autograd.grad(y.sum(), a, create_graph=True)
        first.sin().sum().backward(retain_graph=True)
        show(a.grad, b.grad, torch.autograd.functional.vjp(lambda t: t ** 2, b.detach(),
                                                           a.detach())[1])
        with torch.inference_mode():
            c = a * b
        show(c, torch.autograd.grad((a * b).exp().sum(), [a, b], allow_unused=True)[1])
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            z = a.detach().requires_grad_()
            w = z.clone()
            v = (w * w).sum()
            w.mul_(3)
            v.backward()
        show(z.grad)
    """,
    "backward in several threads": """
        import threading
        nets = [torch.nn.Linear(600, 600).cuda() for _ in range(3)]
        xs = [rand(600, 600) for _ in range(3)]
        def work(n):
            for _ in range(3):
                y = nets[n](xs[n]).sin()
                y.square().sum().backward()
        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        show(*[p.grad for net in nets for p in net.parameters()])
    """,
    "tensors of other threads": """
        import threading, queue
        made = queue.Queue()
        def make():
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for n in range(4):
                    made.put((big(n) * 2, side.record_event()))
        thread = threading.Thread(target=make)
        thread.start()
        for _ in range(4):
            x, event = made.get()
            event.wait()
            x.record_stream(torch.cuda.current_stream())
            show(x + 1)
            del x
        thread.join()
    """,
    "modes": """
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.overrides import TorchFunctionMode
        class Count(TorchDispatchMode):
            seen = 0
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                Count.seen += 1
                return function(*args, **(kwargs or {}))
        class Through(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                return function(*args, **(kwargs or {}))
        x = rand(BIG, requires_grad=True)
        with Count(), Through():
            y = torch.cat([x.sin(), x.cos()]).sort()[0]
            y.sum().backward()
        print(Count.seen)
        show(y, x.grad)
    """,
    "profiler": """
        from torch.profiler import profile, ProfilerActivity
        x = big()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True):
            with torch.profiler.record_function("mine"):
                y = x * 2 + x.sort()[0]
        with torch.autograd.profiler.emit_nvtx(enabled=False):
            y += 1
        show(y)
    """,
    "compile, eager": """
        def f(x, w):
            y = (x @ w).sin()
            y[0] += 1
            return y.sum(0), y.sort(1)[0]
        for backend in ("eager", "aot_eager"):
            w = rand(512, 512, requires_grad=True)
            g = torch.compile(f, backend=backend)
            for _ in range(2):
                a, b = g(big().view(512, 512), w)
                (a.sum() + b.sin().sum()).backward()
            show(a, b, w.grad)
    """,
    "trace": """
        if torch.cuda.get_allocator_backend() == "native":  # the software GPU has no compiler
            torch._C._jit_override_can_fuse_on_gpu(False)
        g = torch.jit.trace(lambda x: torch.cat([(x * 3).sin() + x, x]), (big(),))
        show(g(big(1)), g(big(2)), g(big(3)))
    """,
    "operators of one's own": """
        @torch.library.custom_op("firn_test::twice", mutates_args=())
        def twice(x: torch.Tensor, more: list[torch.Tensor]) -> torch.Tensor:
            return torch.cat([x * 2, *more])
        @torch.library.custom_op("firn_test::bump", mutates_args=("x",))
        def bump(x: torch.Tensor, by: float) -> None:
            x.add_(by)
        twice.register_autograd(lambda ctx, g: (g[:BIG] * 2, [g[BIG:]]))
        twice.register_fake(lambda x, more: x.new_empty(sum(len(t) for t in [x, *more])))
        x, y = rand(BIG, requires_grad=True), rand(BIG, requires_grad=True)
        z = twice(x, [y])
        z.sin().sum().backward()
        w = big()
        bump(w, 3.5)
        torch.compile(lambda t: (bump(t, 1.0), t * 2)[1], backend="aot_eager")(w)
        show(z, x.grad, y.grad, w)
    """,
    "data parallel": """
        net = torch.nn.DataParallel(torch.nn.Linear(600, 600).cuda())
        x = rand(600, 600, requires_grad=True)
        net(x).sin().sum().backward()
        show(x.grad, *[p.grad for p in net.parameters()])
    """,
    "optimizers over views and shared memory": """
        flat = rand(2 * BIG)
        ps = [torch.nn.Parameter(flat[:BIG]), torch.nn.Parameter(flat[BIG:].view(512, 512))]
        o = torch.optim.Adam(ps, lr=0.01, foreach=True)
        for _ in range(3):
            o.zero_grad()
            (ps[0].sum() * ps[1].square().mean()).backward()
            o.step()
        show(flat, *ps)
    """,
    "modules moved and shared": """
        net = torch.nn.Sequential(torch.nn.Linear(700, 700), torch.nn.LSTM(700, 300)).cuda()
        x = rand(20, 3, 700)
        first = net(x)[0]
        import copy
        twin = copy.deepcopy(net)
        net.half().float()
        net.cpu()
        net.cuda()
        show(first, twin(x)[0], net(x)[0], *net.state_dict().values())
        twin.load_state_dict(net.state_dict())
        torch.nn.utils.parametrizations.weight_norm(twin[0])
        show(twin(x)[0], torch.nn.utils.parameters_to_vector(twin.parameters()))
    """,
}

# What passes torch's operators by, or nearly.
STORAGES = {
    "storages copied, filled, read": """
        x, y = big(), big(5)
        s = y.untyped_storage()
        s.copy_(x.untyped_storage())
        show(y)
        t = s.clone()
        t.fill_(1)
        show(torch.empty(0, dtype=torch.uint8, device="cuda").set_(t), y)
        print(s[4096 * 7 + 3], s.nbytes(), s.cpu()[10], s.to(device="cuda")[7])
        s[5] = 77
        typed = big(9).storage()
        print(typed[12345], typed.double()[77])
        typed[8] = 4.0
        show(y, torch.empty(0, device="cuda").set_(typed))
    """,
    "storages resized": """
        x = big()
        x.untyped_storage().resize_(3 * 4 * BIG)
        y = x.as_strided((3 * BIG,), (1,))
        y[BIG:] = 2
        show(x, y)
        y.untyped_storage().resize_(4 * 4096)
        show(y[:4096])
        z = big()
        z.untyped_storage().resize_(0)
        z.untyped_storage().resize_(4 * BIG)
        z.fill_(4)
        show(z)
        w = big()
        w.resize_(2 * BIG)
        w[BIG:] = 1
        show(w)
        v = big()
        v.resize_(1000).resize_(BIG)
        show(v)
    """,
    "storages put under other tensors": """
        x, y = big(), big(3)
        x.set_(y.untyped_storage(), 1000, (100_000,), (2,))
        show(x)
        z = torch.tensor([], device="cuda").set_(y.untyped_storage())
        z.mul_(2)
        show(y, z)
        x.data = y[::4]
        w = torch.nn.Parameter(big())
        w.data = y
        x.add_(1)
        show(x, w, y)
        torch.utils.swap_tensors(a := big(1), b := big(2))
        show(a, b)
        c = big()
        d = c.detach()
        c.set_(big(4))
        show(c, d)
    """,
    "storages written and read": """
        import io
        x = big()
        for new in (True, False):
            file = io.BytesIO()
            torch.save({"x": x, "view": x[::3], "list": [x.half()]}, file,
                       _use_new_zipfile_serialization=new)
            file.seek(0)
            back = torch.load(file, map_location="cuda")
            show(back["x"], back["view"], *back["list"])
        import copy, pickle
        show(copy.deepcopy(x), copy.copy(x), pickle.loads(pickle.dumps(x)))
        import tempfile
        with tempfile.NamedTemporaryFile() as file:
            torch.save(x, file.name)
            show(torch.load(file.name, mmap=True, map_location="cpu"),
                 torch.load(file.name, mmap=True, map_location="cuda"))
    """,
    "copies on write": """
        x = big()
        y = torch._lazy_clone(x)
        z = torch._lazy_clone(y)
        show(x + 0, y + 0)
        y.add_(1)
        show(x, y, z)
        x.mul_(2)
        show(x, y, z)
    """,
    "pinned copies": """
        x = torch.rand(BIG).pin_memory()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            y = x.to("cuda", non_blocking=True)
            z = torch.empty(BIG, pin_memory=True)
            z.copy_(y * 2, non_blocking=True)
        y.record_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().wait_stream(stream)
        show(y + 1)
        del y
        torch.cuda.synchronize()
        show(z)
        w = big()
        w.copy_(x, non_blocking=True)
        h = w.to("cpu", non_blocking=True)
        torch.cuda.synchronize()
        show(w, h, big().to("cuda", torch.float16, non_blocking=True))
    """,
    "streams": """
        x = big()
        streams = [torch.cuda.Stream() for _ in range(3)] + [torch.cuda.default_stream()]
        for n in range(12):
            stream = streams[n % 4]
            stream.wait_stream(streams[(n + 3) % 4])
            with torch.cuda.stream(stream):
                x = x * 1.5 + n
                x.record_stream(streams[(n + 1) % 4])
        torch.cuda.synchronize()
        show(x)
    """,
    "comm on one device": """
        import torch.cuda.comm as comm
        xs = [big(), big(1)]
        show(*comm.scatter(xs[0], devices=[0]), comm.gather(xs, destination=0),
             comm.gather(xs, destination="cpu"), comm.reduce_add([xs[0]], 0))
        show(*torch._utils._unflatten_dense_tensors(torch._utils._flatten_dense_tensors(xs), xs))
    """,
    "random numbers": """
        g = torch.Generator("cuda").manual_seed(7)
        state = g.get_state()
        x = torch.rand(BIG, device="cuda", generator=g)
        show(x, torch.randperm(BIG, device="cuda", generator=g), torch.bernoulli(x, generator=g),
             torch.nn.functional.dropout(x, 0.3), torch.multinomial(x[:1000], 5, generator=g))
        g.set_state(state)
        show(x.uniform_(generator=g), x.normal_(generator=g), x.exponential_(generator=g))
    """,
    "printing and asking": """
        x = big()
        torch.set_printoptions(edgeitems=2)
        print(x, x.view(512, 512), x[7].item(), x.tolist()[:4], bool(x.any()), float(x[3]),
              x[:5].numpy(force=True), len(x), x.__contains__(1008.0), list(x[:3]), x[2].__index__
              is not None, int(x[5]), torch.equal(x, x.clone()), torch.allclose(x, x + 1e-9),
              torch.is_nonzero(x[1]), x.is_same_size(x), torch.cuda.is_available())
        import numpy
        print(numpy.asarray(x.cpu())[:5], hash(x) is not None, x.sum().__format__(".3f"))
    """,
}

CASES = {**WITHIN, **KINDS, **WAYS, **STORAGES}
