"""Operators over lists of tensors, whose lists do not fit the budget together: optimizers' steps,
clipping, scaling. Each piece prints the same with the native allocator and with Firn. For
fork_cases.py.

What is trained is COUNT parameters of 2 MiB. With gradients and states an optimizer has 3 or 4
times that, and Firn's budget is a third of all of it.
"""

FRAME = """
import hashlib, torch
torch.manual_seed(1)
import warnings
warnings.simplefilter("ignore")
COUNT, SIZE = 12, 1 << 19
def rand(size=SIZE, dtype=torch.float32):
    return torch.rand(size, device="cuda").sub_(0.5).to(dtype)
def show(*tensors):
    for t in tensors:
        data = t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
        print(tuple(t.shape), t.dtype, hashlib.sha256(data).hexdigest()[:16])
def refused(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except Exception as error:
        print(type(error).__name__, str(error).split("\\n")[0])
    else:
        print("done")
def train(make, sizes=(SIZE,) * COUNT, types=(torch.float32,), clip=True, scale=False, steps=3):
    ps = [torch.nn.Parameter(rand(size, types[i % len(types)])) for i, size in enumerate(sizes)]
    o = make(ps)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8, enabled=scale)
    for step in range(steps):
        o.zero_grad()
        for i, p in enumerate(ps):
            scaler.scale((p.float() * (i + 1 + step)).square().mean()).backward()
        if scale and step == 1:
            ps[-1].grad[7] = float("inf")
        if clip:
            scaler.unscale_(o)
            print(torch.nn.utils.clip_grad_norm_(ps, 0.01).item())
        scaler.step(o)
        scaler.update()
    show(*ps)
    if scale:
        print(scaler.get_scale())
"""


def optimizer(make, **options):
    words = "".join(", %s=%s" % pair for pair in options.items())
    return "        train(lambda ps: torch.optim.%s)%s\n" % (make, words) if not words else \
        "        train(lambda ps: torch.optim.%s%s)\n" % (make, words)


# Works on host memory in part: buffers made by empty_like() have not been seen in use before the
# first step, and stay, here all of the budget; and lists of different lengths are not cut.
ON_HOST_MEMORY = ("SGD, fused", "SGD, maximize, fused", "lists of other lengths")


def budget(lists):
    """A third of so many lists of 12 parameters of 2 MiB, in MiB."""
    return lists * 12 * 2 // 3


# name: (how many lists of parameters, gradients and states there are, the piece)
OPTIMIZERS = {
    "AdamW": (4, optimizer("AdamW(ps)")),
    "AdamW, foreach": (4, optimizer("AdamW(ps, foreach=True)")),
    "AdamW, fused": (4, optimizer("AdamW(ps, fused=True)")),
    "AdamW, one by one": (4, optimizer("AdamW(ps, foreach=False)")),
    "SGD": (3, optimizer("SGD(ps, lr=0.1, momentum=0.9)")),
    "SGD, foreach": (3, optimizer("SGD(ps, lr=0.1, momentum=0.9, nesterov=True, foreach=True)")),
    "SGD, fused": (3, optimizer("SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True)")),
    "SGD without momentum": (2, optimizer("SGD(ps, lr=0.1)")),
    "Adam, amsgrad": (5, optimizer("Adam(ps, amsgrad=True, weight_decay=0.1, foreach=True)")),
    "Adam, amsgrad, fused": (5, optimizer("Adam(ps, amsgrad=True, fused=True)")),
    "Adam, maximize": (4, optimizer("Adam(ps, maximize=True, foreach=True)")),
    "SGD, maximize, fused": (3, optimizer(
        "SGD(ps, lr=0.1, momentum=0.9, maximize=True, fused=True)")),
    "AdamW, capturable": (4, optimizer("AdamW(ps, capturable=True, foreach=True)")),
    "AdamW, lr a tensor": (4, optimizer(
        "AdamW(ps, lr=torch.tensor(0.01, device='cuda'), capturable=True, foreach=True)")),
    "AdamW, fused, lr a tensor": (4, optimizer(
        "AdamW(ps, lr=torch.tensor(0.01, device='cuda'), fused=True)")),
    "RMSprop, Adagrad and others": (4, optimizer("RMSprop(ps, momentum=0.9, foreach=True)") +
                                    optimizer("NAdam(ps, foreach=True)", steps=2)),
    "scaler": (4, optimizer("AdamW(ps, foreach=True)", scale=True)),
    "scaler, fused": (4, optimizer("AdamW(ps, fused=True)", scale=True, clip=False)),
    "scaler, SGD": (3, optimizer("SGD(ps, lr=0.1, momentum=0.9)", scale=True, clip=False)),
    "two types": (3, optimizer("AdamW(ps, foreach=True)",
                               types="(torch.bfloat16, torch.float32)")),
    "two types, fused": (3, optimizer("AdamW(ps, fused=True)",
                                      types="(torch.bfloat16, torch.float32)")),
    "sizes of all kinds": (4, optimizer(
        "AdamW(ps, foreach=True)",
        sizes="(3 * SIZE, 7, 2 * SIZE, SIZE, SIZE // 3, 1, 2 * SIZE, SIZE, 1000, SIZE)")),
}

# Budget: 16 MiB.
LISTS = {
    "results": """
        xs, ys = [rand() for _ in range(COUNT)], [rand() for _ in range(COUNT)]
        zs = torch._foreach_mul(xs, ys)
        show(*zs, *torch._foreach_norm(zs), *torch._foreach_max(ys), *torch._foreach_pow(2.0, xs),
             *torch._foreach_addcdiv(xs, ys, zs, [float(i) for i in range(COUNT)]))
        show(*torch._foreach_add(torch._foreach_neg(zs), xs, alpha=2))
        torch._foreach_copy_(xs, zs)
        torch._foreach_lerp_(xs, ys, 0.25)
        show(*xs)
    """,
    "results beside half of the budget": """
        others, small = [rand() for _ in range(COUNT)], rand(10)
        xs = [rand() for _ in range(4)]
        show(small, *torch._foreach_abs(xs), *torch._foreach_add(xs, 1.5))
        roots = torch._foreach_sqrt(torch._foreach_mul(xs, xs))
        show(*roots, *torch._foreach_addcdiv(xs[:1], xs[1:2], roots[:1]), *others)
    """,
    "scalars": """
        xs, ys = [rand() for _ in range(COUNT)], [rand() for _ in range(COUNT)]
        torch._foreach_addcmul_(xs, ys, ys, torch.arange(float(COUNT), device="cuda"))
        torch._foreach_mul_(xs, [float(i) for i in range(COUNT)])
        torch._foreach_div_(xs, torch.tensor(3.0, device="cuda"))
        torch._foreach_add_(xs, 1.5)
        torch._foreach_clamp_max_(xs, ys)
        torch._foreach_zero_(ys)
        show(*xs, *ys)
    """,
    "lists of other lengths": """
        xs, ys = [rand() for _ in range(COUNT)], [rand() for _ in range(COUNT)]
        refused(torch._foreach_add_, xs, ys[:4])
        refused(torch._foreach_addcmul_, xs, ys, ys[:1])
        refused(torch._foreach_addcmul_, xs, ys, ys, [1.0, 2.0])
        refused(torch._foreach_addcmul_, xs, ys, ys, torch.arange(3.0, device="cuda"))
        refused(torch._foreach_mul, xs, [1.0])
        refused(torch._foreach_add_, [], ys)
        refused(torch._foreach_add_, xs, [])
        refused(torch._foreach_add_, [], [])
        refused(torch._foreach_norm, [])
        show(*xs, *ys)
    """,
    "lists of other things": """
        xs, ys = [rand() for _ in range(COUNT)], [rand() for _ in range(COUNT)]
        host = [torch.rand(SIZE) for _ in range(COUNT)]
        torch._foreach_add_(host, 1.0)
        refused(torch._foreach_add_, xs[:3] + host[:2] + xs[3:], 1.0)
        refused(torch._foreach_copy_, xs, host)
        refused(torch._foreach_add, xs, [torch.tensor(2.0)] * COUNT)
        refused(torch._foreach_mul_, [x.half() if i % 2 else x for i, x in enumerate(xs)], ys)
        refused(torch._foreach_mul_, xs, [y.t() for y in ys])
        refused(torch._foreach_add_, xs, [y[:7] for y in ys])
        refused(torch._foreach_sqrt_, [x.long() for x in xs])
        show(*xs, *host)
    """,
    "gradients through lists": """
        xs = [rand().requires_grad_() for _ in range(COUNT)]
        ys = torch._foreach_mul(xs, 3.0)
        ys = torch._foreach_sin(ys)
        sum(y.sum() for y in ys).backward()
        show(*[x.grad for x in xs])
    """,
    "views of one": """
        flat, others = rand(3 * SIZE), [rand() for _ in range(COUNT)]
        xs = list(flat.chunk(COUNT))
        torch._foreach_mul_(xs, [float(i) for i in range(COUNT)])
        torch._foreach_add_(others, 1.0)
        torch._foreach_add_(xs, [other[:SIZE // 4] for other in others])
        show(flat, *torch._foreach_norm(xs), *others)
    """,
}
