"""Updates at the host, of parameters on the software GPU: copies behind and in front of its
streams, pinned memory, the device's memory, and the choice by Firn's measured bandwidths."""

import pytest

from conftest import ROOT, run_cases

BEGIN = f"""
import sys; sys.path.insert(0, {str(ROOT / "tests/torch/plugin")!r})
import gc, json, warnings
warnings.simplefilter("ignore", RuntimeWarning)
import torch
from relay_models import Words, firn, loss_of, word_parts
def run(where, kind, steps=3, dtype=torch.float32, layers=2, width=32, after=None, make=Words,
        **options):
    torch.manual_seed(0)
    model = make(layers=layers, width=width).to("cuda", dtype)
    relay_options = dict(clip=options.pop("clip", None), accumulate=options.pop("sums", None))
    optimizer = kind(model.parameters(), lr=1e-2, **options)
    relay = firn.relay(model, optimizer, 2, where=where, **relay_options)
    for parts in word_parts(2, steps):
        relay.step(lambda part: loss_of(model, part.cuda()), parts)
    found = after(relay, optimizer) if after else None
    relay.close()
    values = [each.detach() for each in model.parameters()]
    values += [value for state in optimizer.state.values() for value in state.values()]
    return values, relay, found
def same(one, other):
    return len(one) == len(other) > 0 and all(
        a.device.type == b.device.type and a.dtype == b.dtype and torch.equal(a, b)
        for a, b in zip(one, other))
"""


CASES = {
    # The software GPU's fused kernels are the CPU's, so that the two are equal there: parameters,
    # and states behind close(). The default AdamW of a CUDA device rounds in another order.
    "bits of the device's updates": """
kinds = {"adam": (torch.optim.AdamW, {"fused": True}), "sgd": (torch.optim.SGD, {"momentum": 0.9}),
         "clip": (torch.optim.AdamW, {"fused": True, "clip": 0.1})}
for name, (kind, options) in kinds.items():
    assert same(run("device", kind, **options)[0], run("host", kind, **options)[0]), name
assert not same(run("device", torch.optim.AdamW)[0], run("host", torch.optim.AdamW)[0])
""",
    # In place through .data, which no version tells.
    "quiet writes": """
class Clamped(Words):
    writes = True
    def forward(self, words):
        if self.writes:
            for each in self.blocks[0].parameters():
                each.data.clamp_(-.1, .1)
        return super().forward(words)
class Free(Clamped):
    writes = False
adam = torch.optim.AdamW
for dtype in (torch.float32, torch.bfloat16):
    host, device, free = (run(where, adam, dtype=dtype, fused=True, make=make)[0]
        for where, make in (("host", Clamped), ("device", Clamped), ("host", Free)))
    assert dtype == torch.bfloat16 or same(host, device)
    assert not same(host, free)
""",
    # Copies down are behind the caller's copies, and the caller's later ones behind those up.
    "copies are in order": """
from firn.relay.link import Link
said = []
link = Link(torch.device("cuda:0"), said.append)
value, source = (torch.zeros(1 << 24, device="cuda") for _ in range(2))
host = link.empty(value, torch.float32)
assert host.is_pinned() and not said
link.down([value], [host]).wait()  # (its memory is used again)
for number in range(1, 4):
    source.fill_(number)
    value.zero_()
    torch.cuda.synchronize()
    for _ in range(8):
        value.copy_(source)
    down = link.down([value], [host]).wait()[0]
    assert bool((down == number).all()), number
    host.copy_(down + 1)
    del down
    for _ in range(8):
        link.up([host], [value])
    link.join()
    source.copy_(value)  # (the software GPU's kernels wait for copies by themselves)
    assert bool((source == number + 1).all()), number
""",
    # It is said once, and updates go through pageable memory, with the same bits.
    "memory that cannot be pinned": """
plain = run("host", torch.optim.AdamW)[0]
empty_like = torch.empty_like
def unpinned(*arguments, pin_memory=False, **options):
    if pin_memory:
        raise RuntimeError("CUDA error: out of memory\\nmore")
    return empty_like(*arguments, **options)
torch.empty_like = unpinned
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    values = run("host", torch.optim.AdamW)[0]
said = [str(each.message) for each in caught if "pinned" in str(each.message)]
assert len(said) == 1 and "cannot be pinned (CUDA error: out of memory)" in said[0], said
assert same(values, plain)
""",
    # After steps, and at the most in one: the states of AdamW are two parameters' worth.
    "the device holds no states": """
def memory(relay, optimizer):
    gc.collect()  # (of the run before: a relay and its model are in cycles)
    torch.cuda.reset_peak_memory_stats()
    now = torch.cuda.memory_allocated()
    for parts in word_parts(2, 2):
        relay.step(lambda part: loss_of(relay.model, part.cuda()), parts)
    torch.cuda.synchronize()
    return now, torch.cuda.max_memory_allocated()
sizes = [run(where, torch.optim.AdamW, layers=6, width=128, after=memory, fused=True)[2]
         for where in ("device", "host")]
model = Words(layers=6, width=128)
parameters = 4 * sum(each.numel() for each in model.parameters())
layer = 4 * sum(each.numel() for each in model.blocks[0].parameters())
(now, peak), (now_host, peak_host) = sizes
assert abs(now - now_host - 2 * parameters) < 0.1 * parameters, (sizes, parameters)
assert peak - peak_host > 2 * parameters - 3 * layer, (sizes, parameters, layer)
"""}


@pytest.fixture(scope="module")
def found(software_environment, tmp_path_factory):
    return run_cases(software_environment, tmp_path_factory.mktemp("host"), CASES, BEGIN)


@pytest.mark.parametrize("name", CASES)
def test_with_torchs_allocator(found, name):
    assert found[name]["status"] == 0, found[name]["output"] + found[name]["errors"]


LARGE = """
values = run("host", torch.optim.AdamW, dtype=torch.bfloat16, layers=4, width=256,
             sums=torch.float32)[0]
"""


@pytest.mark.parametrize("more", [
    "firn_budget:6MiB", pytest.param("firn_test_adversarial:1", marks=pytest.mark.long)])
def test_bits_with_firn(run, more):
    """At a budget that parameters and gradients exceed, and where everything leaves after each
    operator: what is to be copied may be away."""
    run(BEGIN + LARGE + """
torch.save([each.cpu() for each in values], "plain")
""", conf=None)
    run(BEGIN + LARGE + """
plain = torch.load("plain")
assert len(plain) == len(values)
assert all(torch.equal(one, other.cpu()) for one, other in zip(plain, values))
(device,) = firn.stats()["devices"]
assert device["spilled_bytes"] > 0, device
""", conf=f"backend:firn,{more},firn_host:64MiB,firn_watch:0")


def test_the_choice_by_measured_bandwidths(run):
    """With Firn: what is chosen is what the two numbers say, and the bits are that place's."""
    done = run(BEGIN + """
from firn.relay import place
def chosen(parameters_s):
    place.update_rate = lambda *_: (parameters_s, 2.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        values, relay, where = run("auto", torch.optim.AdamW, layers=4, width=384, fused=True,
                                   steps=5, after=lambda relay, _: relay.where)
    said = [str(each.message) for each in caught if "where='auto'" in str(each.message)]
    return values, where, said
measured = place.update_rate
runs = [chosen(1e15), chosen(1.0)]
for (values, where, said), expected in zip(runs, ("host", "device")):
    assert where == expected and len(said) == 1, (where, said)
    print(said[0])
assert same(runs[0][0], runs[1][0])
torch.manual_seed(0)
model = Words(width=256)
optimizer = torch.optim.AdamW(model.parameters())
from firn.relay.link import Link
link = Link(torch.device("cpu"), print)
rate, states = measured(optimizer, list(model.blocks[0].parameters()), link, None)
assert 1e5 < rate < 1e12 and states == 2.0 and len(optimizer.state) == 0
""", conf="backend:firn,firn_budget:10MiB,firn_host:256MiB,firn_watch:0")
    host, device = done.stdout.splitlines()[-2:]
    assert host.startswith("firn.relay: where='auto': updates at the host: a step moves")
    assert device.startswith("firn.relay: where='auto': updates on the device: a step moves")
    for words in (" s on the device, in ", " s at the host (", " GB/s in and out, "):
        assert words in host and words in device
