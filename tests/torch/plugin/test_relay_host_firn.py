"""Updates at the host with states in Firn's memory: the bits of states in pinned memory, wherever
Firn has them; checkpoints; what is refused."""

import pytest

from test_relay_host_gpu import BEGIN

# Every weight of the model has masters and states that leave by themselves; biases have not.
BEGIN += """
LARGE = dict(layers=2, width=512)
def states_of(relay, optimizer):
    twin = relay._update._twin
    there = [each for state in twin.optimizer.state.values() for each in state.values()
             if each.is_cuda]
    assert there and not any(optimizer.state.values())
    return sum(each.numel() * each.element_size() for each in there)
def in_firn(kind=torch.optim.AdamW, after=states_of, **options):
    values, relay, found = run("host", kind, after=after, **LARGE, states="firn", **options)
    return values, found
"""
BEGIN = BEGIN.replace("""    relay_options = dict(""", """    relay_options = dict(states=options.pop("states", "pinned"), """)
MUCH = "backend:firn,firn_budget:40MiB,firn_host:512MiB,firn_watch:0"


def test_bits_of_states_in_pinned_memory(run):
    """For each kernel; in 16 bits with masters; and nothing of the states crosses the link once
    they are there."""
    run(BEGIN + """
kinds = {"adam": (torch.optim.AdamW, {"amsgrad": True, "clip": 0.1}),
         "plain sgd": (torch.optim.SGD, {}),
         "nadam": (torch.optim.NAdam, {}),
         "bf16": (torch.optim.SGD, {"momentum": 0.9, "dtype": torch.bfloat16})}
for name, (kind, options) in kinds.items():
    pinned = run("host", kind, **LARGE, **options)[0]
    after = None if name == "plain sgd" else states_of
    values, _ = in_firn(kind, after, **options)
    assert same(pinned, values), name
def counters(relay, optimizer):
    def now():
        torch.cuda.synchronize()
        (device,) = firn.stats()["devices"]
        return device["host_uses"], device["host_use_bytes"]
    before = now()
    for parts in word_parts(2, 2):
        relay.step(lambda part: loss_of(relay.model, part.cuda()), parts)
    return states_of(relay, optimizer), [b - a for a, b in zip(before, now())]
there, (uses, used) = in_firn(after=counters)[1]
# Each step uses each master and each state once: the masters are half as much as the states.
assert used == 2 * (there + there // 2) and uses > 0, (there, used)
""", conf=MUCH)


@pytest.mark.parametrize("more", [
    "firn_host:16MiB", pytest.param("firn_host:64MiB,firn_test_adversarial:1",
                                    marks=pytest.mark.long)])
def test_states_that_are_larger_than_host_memory(run, tmp_path, more):
    """They are on the SSD between their uses, and bits are equal."""
    run(BEGIN + """
torch.save([each.cpu() for each in run("host", torch.optim.AdamW, **LARGE)[0]], "plain")
""", conf=None)
    (tmp_path / "spill").mkdir()
    run(BEGIN + """
values, there = in_firn()
plain = torch.load("plain")
assert len(plain) == len(values)
assert all(torch.equal(one, other.cpu()) for one, other in zip(plain, values))
(device,) = firn.stats()["devices"]
store = firn.stats()["store"]
assert there + there // 2 > 20 << 20, there  # (with the masters)
assert store["read_bytes"] > there and store["written_bytes"] > there, (store, there)
assert device["lost_blocks"] == 0 and device["zero_copy_bytes"] == 0, device
""", conf=f"backend:firn,firn_budget:40MiB,{more},firn_watch:0,firn_dir:{tmp_path}/spill")


def test_checkpoints(run):
    """Of each place, loaded in each: a run in two halves is the run in one."""
    run(BEGIN + """
def half(where, saved, first):
    torch.manual_seed(0)
    model = Words(**LARGE).cuda()
    if saved:
        model.load_state_dict(saved["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    relay = firn.relay(model, optimizer, 2, **where) if where else None
    if saved:
        optimizer.load_state_dict(saved["optimizer"])
    for parts in word_parts(2, 4)[2 * (not first):][:2]:
        if relay:
            relay.step(lambda part: loss_of(model, part.cuda()), parts)
            continue
        for part in parts:
            loss_of(model, part.cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "saved")
    if relay:
        relay.close()
    return torch.load("saved", weights_only=True)
places = {"plain": {}, "pinned": {"where": "host"}, "firn": {"where": "host", "states": "firn"}}
ends = {}
for first, second in (("plain", "plain"), ("plain", "firn"), ("firn", "plain"),
                      ("pinned", "firn"), ("firn", "pinned")):
    saved = half(places[first], None, True)
    ends[first, second] = half(places[second], saved, False)
def flat(saved):
    values = list(saved["model"].values())
    for _, state in sorted(saved["optimizer"]["state"].items()):
        values += [state["step"], state["exp_avg"], state["exp_avg_sq"]]
    return [each.cpu() for each in values]
plain = flat(ends["plain", "plain"])
for name, saved in ends.items():
    assert same(plain, flat(saved)), name
""", conf=MUCH)


def test_a_program_that_writes_its_parameters(run):
    """The masters in Firn's memory are read again."""
    run(BEGIN + """
def changed(states):
    torch.manual_seed(0)
    model = Words(**LARGE).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    relay = firn.relay(model, optimizer, 2, where="host", states=states)
    for number, parts in enumerate(word_parts(2, 3)):
        if number == 2:
            with torch.no_grad():
                model.blocks[1].inner.weight.mul_(0.5)
                model.blocks[0].inner.weight.mul_(1)  # (its value stays, and so does its master)
        relay.step(lambda part: loss_of(model, part.cuda()), parts)
    relay.close()
    return [each.detach() for each in model.parameters()]
assert same(changed("pinned"), changed("firn"))
""", conf=MUCH)


def test_what_is_refused(run):
    run(BEGIN + """
def refused(words, kind=torch.optim.AdamW, error=firn.relay.Refused, **options):
    model = Words(**LARGE).cuda()
    optimizer = kind(model.parameters())
    try:
        firn.relay(model, optimizer, 2, **{"where": "host", "states": "firn", **options})
    except error as why:
        assert words in str(why), why
    else:
        raise AssertionError(words)
class Mine(torch.optim.AdamW):
    pass
refused("not of Adafactor", torch.optim.Adafactor)
refused("not of Mine", Mine)
refused("where='host' or 'auto'", error=ValueError, where="device")
refused("no host_optimizer=", error=ValueError, host_optimizer=torch.optim.AdamW)
refused("'pinned' or 'firn'", error=ValueError, states="ssd")
""", conf=MUCH)
    run(BEGIN + """
model = Words(width=32)
optimizer = torch.optim.AdamW(model.parameters())
try:
    firn.relay(model, optimizer, 2, where="host", states="firn")
except firn.relay.Refused as why:
    assert "Firn as the allocator" in str(why), why
""", conf=None)


def test_host_memory_that_cannot_hold_one_parameters_states(run, tmp_path):
    (tmp_path / "spill").mkdir()
    done = run(BEGIN + """
LARGE.update(layers=2, width=1024)  # 8 MiB a weight
try:
    in_firn()
except MemoryError as error:
    print("said:", error, getattr(error, "__notes__", ""))
""", conf="backend:firn,firn_budget:80MiB,firn_host:16MiB,firn_watch:0,firn_dir:"
          f"{tmp_path}/spill")
    assert "said: firn: block" in done.stdout and "(firn_host)" in done.stdout, done.stdout
