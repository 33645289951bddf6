"""What passes torch's operators by, or nearly, for touch_cases.py."""

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
