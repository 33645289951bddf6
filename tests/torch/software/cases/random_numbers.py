"""Random numbers: those of the CPU's generator of the same seed, and a state that can be kept."""

import torch
from _common import assert_same, bits


def draws(device):
    x = torch.empty(1000, device=device)
    yield torch.randn(5, device=device)
    yield torch.randn(3, device=device)  # the normal distribution keeps a number for the next call
    yield torch.rand(1000, device=device)
    yield torch.randint(100, (77,), device=device)
    yield x.normal_(2, 3).clone()
    yield x.uniform_(-1, 1).clone()
    yield x.bernoulli_(0.3).clone()
    yield x.exponential_().clone()
    yield x.cauchy_().clone()
    yield x.geometric_(0.2).clone()
    yield x.log_normal_().clone()
    yield torch.randperm(100, device=device)
    yield torch.multinomial(torch.arange(1.0, 20.0, device=device), 5)
    yield torch.bernoulli(torch.full((50,), 0.5, device=device))
    yield torch.poisson(torch.full((50,), 4.0, device=device))
    yield torch.nn.functional.dropout(torch.ones(999, device=device), 0.4)
    yield torch.randn(700, device=device, dtype=torch.float64)
    yield torch.randn_like(x)


def case_numbers_of_the_cpu():
    torch.manual_seed(123)
    expected = list(draws("cpu"))
    for number, (cuda, cpu) in enumerate(zip(draws("cuda"), expected, strict=True)):
        assert_same(cuda, cpu, str(number))


def case_state_kept_and_restored():
    torch.cuda.manual_seed(9)
    torch.rand(12345, device="cuda")
    state = torch.cuda.get_rng_state()
    first = [bits(t) for t in draws("cuda")]
    torch.rand(5_000_000, device="cuda")
    torch.cuda.set_rng_state(state)
    for a, t in zip(first, draws("cuda")):
        assert torch.equal(a, bits(t))
    # as another process would see it: nothing known but seed and offset
    generator = torch.Generator(device="cuda")
    generator.set_state(state)
    x = torch.rand(10, device="cuda", generator=generator)
    torch.cuda.set_rng_state(state)
    assert torch.equal(x.cpu(), torch.rand(10, device="cuda").cpu())


def case_fork_rng_and_reseeding():
    torch.cuda.manual_seed(4)
    a = torch.rand(8, device="cuda").cpu()
    b = torch.rand(8, device="cuda").cpu()
    torch.cuda.manual_seed(4)
    assert torch.equal(a, torch.rand(8, device="cuda").cpu())
    with torch.random.fork_rng(devices=[0]):
        torch.cuda.manual_seed(77)
        torch.rand(100, device="cuda")
    assert torch.equal(b, torch.rand(8, device="cuda").cpu())


def case_generators_are_apart():
    one = torch.Generator(device="cuda").manual_seed(1)
    two = torch.Generator(device="cuda").manual_seed(1)
    torch.cuda.manual_seed(1)
    a = torch.rand(64, device="cuda", generator=one)
    torch.rand(64, device="cuda")
    assert torch.equal(a.cpu(), torch.rand(64, device="cuda", generator=two).cpu())
    assert one.get_offset() == two.get_offset() > 0
    try:
        torch.rand(4, device="cuda", generator=torch.Generator())
    except RuntimeError as error:
        assert "Expected a 'cuda' device type for generator" in str(error), error
    else:
        raise AssertionError("a CPU generator was taken")


def case_seeding_the_cpu_leaves_the_device_alone():
    torch.cuda.manual_seed(5)
    a = torch.rand(8, device="cuda").cpu()
    torch.cuda.manual_seed(5)
    torch.default_generator.manual_seed(99)
    torch.rand(100)
    assert torch.equal(a, torch.rand(8, device="cuda").cpu())
