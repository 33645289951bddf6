"""Operators' uses of memory are seen: bytes are right under a budget that forces everything out."""

import pytest
from conftest import run_cases

TIGHT = "backend:firn,firn_budget:96MiB,firn_host:1GiB,firn_watch:0"
ADVERSARIAL = "backend:firn,firn_host:1GiB,firn_test_adversarial:1"

# Each is run with the native allocator and with everything spilled after every operator; what it
# prints has to be the same. Tensors of 2 MiB and more: smaller ones do not spill.
CASES = {
    "views": """
        x = torch.arange(1 << 20, device="cuda", dtype=torch.float32).view(1024, 1024)
        parts = list(x.t().split(100)) + [x[::3], x.diagonal(), x.unfold(0, 5, 7)]
        parts.append(x.expand(2, -1, -1))
        show(*[part.contiguous() for part in parts], x.as_strided((7, 9), (3, 5)).clone())
    """,
    "in place and out": """
        x = torch.rand(1 << 20, device="cuda")
        y = torch.rand(1 << 20, device="cuda")
        x.add_(y).mul_(2).clamp_(0, 3)
        torch.add(x, y, out=y)
        x[::2] = y[1::2]
        x.masked_fill_(y > 2, -1.0)
        show(x, y)
    """,
    "sorting and indexing": """
        x = torch.rand(1 << 20, device="cuda")
        values, indices = x.sort()
        show(values, indices, x[indices], x.nonzero(), x.unique(), x.topk(100)[0],
             torch.bincount((x * 100).long()), x.cumsum(0), x.gather(0, indices))
        x.index_put_((indices[:1000],), values[:1000], accumulate=True)
        x.scatter_add_(0, indices, values)
        show(x)
    """,
    "lists": """
        xs = [torch.rand(1 << 20, device="cuda") for _ in range(5)]
        ys = torch._foreach_mul(xs, 2.0)
        torch._foreach_add_(xs, ys, alpha=0.5)
        show(*xs, *ys, *torch._foreach_norm(ys), torch.cat(xs), torch.stack(ys))
        show(*torch.meshgrid(xs[0][:1000], ys[0][:1000], indexing="ij"))
    """,
    "autograd": """
        w = torch.randn(1024, 1024, device="cuda", requires_grad=True)
        e = torch.nn.Embedding(10_000, 256).cuda()
        c = torch.nn.Conv2d(3, 64, 3, padding=1).cuda()
        n = torch.nn.BatchNorm2d(64).cuda()
        l = torch.nn.LayerNorm(1024).cuda()
        for _ in range(2):
            a = l(torch.randn(1024, 1024, device="cuda") @ w).softmax(-1).log().sum()
            b = e(torch.randint(10_000, (32, 512), device="cuda")).pow(2).mean()
            d = n(c(torch.randn(2, 3, 128, 128, device="cuda"))).relu().sum()
            (a * 1e-6 + b + d * 1e-6).backward()
        show(w.grad, e.weight.grad, c.weight.grad, n.weight.grad, n.running_mean, l.weight.grad)
    """,
    "attention and autocast": """
        m = torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True).cuda()
        x = torch.randn(8, 256, 512, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = m(x).float().sum()
        y.backward()
        show(y, x.grad, *[p.grad for p in m.parameters()])
    """,
    "optimizers": """
        for make in (lambda p: torch.optim.AdamW(p, foreach=True, amsgrad=True),
                     lambda p: torch.optim.AdamW(p, fused=True),
                     lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
                     lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
                     lambda p: torch.optim.Adagrad(p, foreach=False),
                     lambda p: torch.optim.RMSprop(p, foreach=True)):
            ps = [torch.randn(1 << 19, device="cuda", requires_grad=True) for _ in range(6)]
            o = make(ps)
            for _ in range(2):
                sum(p.square().mean() for p in ps).backward()
                torch.nn.utils.clip_grad_norm_(ps, 0.01)
                o.step()
                o.zero_grad()
            show(*ps)
    """,
    "scaler": """
        ps = [torch.randn(1 << 19, device="cuda", requires_grad=True) for _ in range(6)]
        o, s = torch.optim.SGD(ps, lr=0.1), torch.amp.GradScaler("cuda", init_scale=2.0**10)
        for step in range(3):
            s.scale(sum(p.square().sum() for p in ps)).backward()
            if step == 1:
                ps[4].grad[7] = float("inf")
            s.step(o)
            s.update()
            o.zero_grad()
        show(*ps, torch.tensor(s.get_scale()))
    """,
    "sparse and nested": """
        x = torch.sparse_csr_tensor(torch.arange(0, 600_001, 600, device="cuda"),
                                    torch.arange(600_000, device="cuda") % 1000,
                                    torch.rand(600_000, device="cuda"), (1000, 1000))
        show(x.to_dense(), x.values(), x.col_indices())
        n = torch.nested.nested_tensor([torch.rand(1000, 500, device="cuda"),
                                        torch.rand(700, 500, device="cuda")])
        show(n.values(), *torch.softmax(n, -1).unbind(), *(n * 2).unbind())
    """,
    "files and copies": """
        import io
        x = torch.rand(1 << 20, device="cuda")
        file = io.BytesIO()
        torch.save({"x": x, "half": x[::2]}, file)
        file.seek(0)
        y = torch.load(file, map_location="cuda")
        z = x.cpu().pin_memory().to("cuda", non_blocking=True)
        show(y["x"], y["half"], z, x.half(), x.double(), torch.from_numpy(x.cpu().numpy()))
        print(x[12345].item(), x[:3].tolist(), bool((x > 2).any()), torch.equal(x, z))
    """,
    "function and checkpoint": """
        from torch.utils.checkpoint import checkpoint
        class Square(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x
            @staticmethod
            def backward(ctx, g):
                (x,) = ctx.saved_tensors
                return 2 * x * g
        x = torch.randn(1 << 20, device="cuda", requires_grad=True)
        y = checkpoint(lambda t: Square.apply(t).exp().neg().exp(), x, use_reentrant=False)
        y.sum().backward()
        show(x.grad, torch.func.vmap(torch.sin)(x.view(1024, 1024)).detach(),
             torch.func.grad(lambda t: (t ** 3).sum())(x.detach()))
    """,
    "threads": """
        import threading
        results = [None] * 3
        def work(n):
            torch.manual_seed(n)
            x = torch.full((1 << 20,), float(n), device="cuda")
            for _ in range(10):
                x = x * 1.5 + n
            results[n] = x
        threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        show(*results)
    """,
}

FRAME = """
import hashlib, torch
torch.manual_seed(1)
torch.use_deterministic_algorithms(True, warn_only=True)
def show(*tensors):
    for t in tensors:
        t = t.detach().cpu().contiguous()
        bytes = t.flatten().view(torch.uint8).numpy().data
        print(tuple(t.shape), hashlib.sha256(bytes).hexdigest())
"""
COUNTS = """
import firn
d = firn.stats()["devices"][0]
print("spilled", d["spilled_bytes"] > 0, "lost", d["lost_blocks"])
from firn import _autoload
_autoload.plugin().firn_torch_check()
"""


@pytest.fixture(scope="module")
def outputs(software_environment, tmp_path_factory):
    """outputs(conf): {name: what fork_cases.py says of it}, of one process."""
    folder, found = tmp_path_factory.mktemp("cases"), {}

    def of(conf):
        if conf not in found:
            found[conf] = run_cases(software_environment, folder, CASES, FRAME,
                                    COUNTS if conf else "", conf)
        return found[conf]

    return of


@pytest.mark.parametrize("conf", [ADVERSARIAL, TIGHT], ids=["adversarial", "tight"])
@pytest.mark.parametrize("name", CASES)
def test_same_bytes(outputs, name, conf):
    native, firn = outputs(None)[name], outputs(conf)[name]
    assert native["status"] == 0 and native["output"], native
    assert firn["status"] == 0, firn
    *lines, last = firn["output"].splitlines()
    assert lines == native["output"].splitlines()
    assert last.endswith("lost 0")
    if conf == ADVERSARIAL:
        assert last.startswith("spilled True")


def test_nothing_is_observed_while_memory_suffices(run):
    run("""
        import torch, firn
        from firn import _autoload
        x = torch.ones(1 << 20, device="cuda")
        (x * 2).sum().item()
        assert not _autoload.plugin().firn_torch_observing()
        y = torch.ones(100 << 20, device="cuda")  # 400 of 800 MiB and more
        assert _autoload.plugin().firn_torch_observing()
    """, conf="backend:firn,firn_budget:800MiB")


def test_the_operator_under_way_when_watching_begins_keeps_what_it_uses(run):
    """Its own beginning was not seen: what its inner operators use is its kernel's until it ends.
    (As an operator in C++ it is run from where Python cannot tell us anything in between.)"""
    run("""
        import ctypes, torch, firn
        from firn import _addresses, _autoload, _libraries
        def state(tensor):
            address = _addresses.storage_address(tensor.untyped_storage())
            return _libraries.read_text(_autoload.plugin().firn_torch_state, address)
        library = torch.library.Library("firn_test", "FRAGMENT")
        library.define("outer(Tensor x) -> Tensor")
        seen, kept = [], []
        def outer(x):
            kept.append(torch.empty(30 << 20, dtype=torch.uint8, device="cuda"))  # watched now
            seen.append(_autoload.plugin().firn_torch_observing())
            x.add_(0)                           # seen to use it
            result = torch.empty(24 << 20, dtype=torch.uint8, device="cuda")
            _autoload.plugin().firn_torch_spill_all()
            seen.append(state(x))               # its address is about to be the kernel's
            return result
        library.impl("outer", outer, "CUDA")
        x = torch.ones(2 << 20, device="cuda")
        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
        def without_pending_calls(_):
            torch.ops.firn_test.outer(x)
            return 0
        assert ctypes.pythonapi.Py_AddPendingCall(without_pending_calls, None) == 0
        while not seen:
            pass
        assert seen == [1, "resident"], seen
        for _ in range(100):
            pass
        x.add_(0)
        _autoload.plugin().firn_torch_spill_all()
        assert state(x) != "resident"           # but no longer
        assert x.sum().item() == 2 << 20
    """, conf="backend:firn,firn_budget:64MiB,firn_host:256MiB,firn_policy:age")


def test_an_operator_above_the_budget(run):
    """Inputs that fit, a result that does not fit beside them: it is in host memory, and said."""
    done = run("""
        import torch, firn
        a = torch.full((10 << 20,), 1.0, device="cuda")
        b = torch.full((10 << 20,), 2.0, device="cuda")
        c = torch.add(a, b)
        assert firn.stats()["devices"][0]["zero_copy_bytes"] == 40 << 20
        assert c.min().item() == c.max().item() == 3
        c.add_(1)                                       # on the device again
        assert firn.stats()["devices"][0]["zero_copy_bytes"] == 40 << 20
        assert a[0].item() == 1 and b[-1].item() == 2 and c[5].item() == 4
    """, conf="backend:firn,firn_budget:96MiB,firn_host:256MiB,firn_watch:0")
    assert "the tensors of one operator exceed the budget" in done.stderr, done.stderr


def test_a_result_above_the_budget(run):
    run("""
        import torch
        a = torch.full((10 << 20,), 1.0, device="cuda")
        try:
            torch.cat([a, a, a])
        except torch.cuda.OutOfMemoryError as error:
            words = str(error)
            assert "Tried to allocate 120.00 MiB" in words and "firn_budget" in words, words
        else:
            assert False
        assert a[0].item() == a[-1].item() == 1
    """, conf="backend:firn,firn_budget:96MiB,firn_host:256MiB,firn_watch:0")


def test_inputs_above_the_budget(run):
    """An operator that allocates nothing cannot be refused: it works on host memory."""
    run("""
        import torch, firn
        xs = [torch.full((10 << 20,), float(i), device="cuda") for i in range(3)]
        xs[0].addcmul_(xs[1], xs[2])
        assert xs[0].min().item() == xs[0].max().item() == 2
        assert firn.stats()["devices"][0]["zero_copy_bytes"] > 0
        assert [x[5].item() for x in xs] == [2, 1, 2]
    """, conf="backend:firn,firn_budget:96MiB,firn_host:512MiB,firn_watch:0")


def test_lists_above_the_budget_are_cut(run):
    """An optimizer step over 16 times 4 lists of 4 MiB, in a sixth of that."""
    run("""
        import torch, firn
        ps = [torch.full((1 << 20,), float(i), device="cuda", requires_grad=True)
              for i in range(16)]
        o = torch.optim.SGD(ps, lr=0.5, foreach=True)
        for p in ps:
            p.grad = torch.ones_like(p)
        o.step()
        assert [p[3].item() for p in ps] == [i - 0.5 for i in range(16)]
        scaled = torch._foreach_mul([p.detach() for p in ps], [float(i) for i in range(16)])
        assert [s[9].item() for s in scaled] == [(i - 0.5) * i for i in range(16)]
        torch._foreach_addcmul_([p.detach() for p in ps], scaled, scaled,
                                [float(i) for i in range(16)])
        expected = [(i - 0.5) + i * ((i - 0.5) * i) ** 2 for i in range(16)]
        assert [p[1].item() for p in ps] == expected
        d = firn.stats()["devices"][0]
        assert d["zero_copy_bytes"] == 0, d
        assert d["peak_device_bytes"] <= 48 << 20
    """, conf="backend:firn,firn_budget:48MiB,firn_host:512MiB,firn_watch:0")


def test_a_lost_block_is_an_error(run, tmp_path):
    """The bytes on disk are spoilt: whoever asks for them gets an error that says so."""
    done = run("""
        import os, torch
        from firn import _autoload
        x = torch.full((8 << 20,), 3.0, device="cuda")
        y = torch.full((8 << 20,), 4.0, device="cuda")
        x.add_(0), y.add_(0)
        torch.cuda.synchronize()
        hoard = [torch.ones(4 << 20, device="cuda") for _ in range(8)]
        for _ in range(4):
            for each in hoard:
                each.add_(1)
        spoilt = 0
        for fd in os.listdir("/proc/self/fd"):
            try:
                path = os.readlink("/proc/self/fd/" + fd)
            except OSError:
                continue
            if "(deleted)" in path and os.getcwd() in path:
                size = os.stat("/proc/self/fd/" + fd).st_size
                with open("/proc/self/fd/" + fd, "r+b", buffering=0) as file:
                    for at in range(0, size, 4096):
                        file.seek(at)
                        file.write(os.urandom(64))
                spoilt += 1
        assert spoilt >= 1  # descriptors of the one file
        try:
            x.add_(1)
        except RuntimeError as error:
            print(error)
        else:
            print("read", x[0].item())
    """, conf="backend:firn,firn_budget:64MiB,firn_host:16MiB,firn_watch:0,firn_dir:%s" % tmp_path,
               status=None)
    assert "lost" in done.stdout and "block" in done.stdout, done.stdout + done.stderr


def test_two_devices(run):
    """Each device has its own budget; copies between them bring both ends back."""
    run("""
        import torch, firn
        xs = [[torch.full((4 << 20,), float(10 * d + i), device=f"cuda:{d}") for i in range(8)]
              for d in range(2)]
        ys = [x.to("cuda:1") * 2 for x in xs[0]]
        zs = [x.to("cuda:0") * 3 for x in xs[1]]
        assert [y[7].item() for y in ys] == [2.0 * i for i in range(8)]
        assert [z[7].item() for z in zs] == [3.0 * (10 + i) for i in range(8)]
        for device in firn.stats()["devices"]:
            assert device["spilled_bytes"] > 0 and device["peak_device_bytes"] <= 96 << 20
    """, conf=TIGHT, FIRN_GPU_DEVICES=2)


def test_what_is_only_read_is_copied_out_once(run):
    """The operators' schemas tell reads from writes."""
    moved = {}
    for use in ("w.sum()", "w.add_(1)"):
        done = run(f"""
            import torch, firn
            weights = [torch.full((2 << 20,), float(n), device="cuda") for n in range(12)]
            for _ in range(8):
                for w in weights:
                    {use}
            assert [w[7].item() % 1 for w in weights] == [0.0] * 12
            device = firn.stats()["devices"][0]
            print(device["spilled_bytes"], device["clean_dropped_bytes"])
        """, conf="backend:firn,firn_budget:64MiB,firn_host:1GiB,firn_watch:0")
        moved[use] = [int(word) / (96 << 20) for word in done.stdout.split()[-2:]]
    spilled, dropped = moved["w.sum()"]
    assert spilled <= 1 and dropped > 1  # in parts of all weights
    assert moved["w.add_(1)"][0] > 2


def test_an_operator_at_the_address_of_one_that_is_gone(run, tmp_path):
    """Operators are known by where PyTorch keeps them: one that it forgets is forgotten."""
    run("""
        import torch
        x = torch.ones(2 << 20, device="cuda")
        for n in range(30):
            views = torch.library.Library("aten", "FRAGMENT")
            views.define(f"firn_view_{n:03}(Tensor(a) self) -> Tensor(a)")
            views.impl(f"firn_view_{n:03}", lambda x: x.view(-1), "CUDA")
            getattr(torch.ops.aten, f"firn_view_{n:03}")(x)
            views._destroy()
            makers = torch.library.Library("firn", "DEF")
            makers.define(f"makes__{n:03}(Tensor self) -> Tensor")
            makers.impl(f"makes__{n:03}", lambda x: torch.empty_like(x), "CUDA")
            getattr(torch.ops.firn, f"makes__{n:03}")(x)
            makers._destroy()
    """, conf=f"backend:firn,firn_watch:0,firn_trace:{tmp_path}/events.csv")
    made = (tmp_path / "events.csv").read_text()
    assert [n for n in range(30) if f"firn::makes__{n:03}" not in made] == []


def test_what_an_operator_frees_on_one_stream_while_it_works_on_another(run, libraries):
    """Holds are let go of with their own stream, and none is left. (With Firn in front of the driver:
    else what an operator that is not PyTorch's own is given stays.)"""
    run("""
        import torch
        side = torch.cuda.Stream()

        @torch.library.custom_op("firn_test::on_two_streams", mutates_args=())
        def on_two_streams(x: torch.Tensor) -> torch.Tensor:
            first = x * 2
            again = x * 3
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                second = x + 1
                later = x + 2
                del first
                third = second * 2
            torch.cuda.current_stream().wait_stream(side)
            fourth = again + later
            del later, second
            result = third + fourth
            side.wait_stream(torch.cuda.current_stream())
            return result

        xs = [torch.full((2 << 20,), float(n), device="cuda") for n in range(12)]
        for _ in range(6):
            ys = [on_two_streams(x) for x in xs]
            assert [y[9].item() for y in ys] == [6.0 * n + 4 for n in range(12)]
        import firn
        assert firn.stats()["devices"][0]["spilled_bytes"] > 0
    """, conf=TIGHT.replace("96MiB", "112MiB"), LD_PRELOAD=libraries["software/libcudart.so.13"])
