"""What runs operators on the program's behalf, for touch_cases.py."""

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
