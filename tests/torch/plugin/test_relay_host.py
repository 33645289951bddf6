"""Updates at the host, of parameters on the CPU: the plain loop's bits, where its optimizer
computes as the twin does; their order, and exceptions."""

import concurrent.futures
import threading

import pytest
import torch
from torch import nn

from relay_models import Job, Words, different, firn, loss_of, quietly, word_parts

FUSED = {"adam": (torch.optim.Adam, {"weight_decay": 0.1}),
         "adamw": (torch.optim.AdamW, {"amsgrad": True}),
         "sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
         "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.5})}
OTHERS = {"adamw": (torch.optim.AdamW, {"fused": False}),
          "adamw foreach": (torch.optim.AdamW, {"fused": False, "foreach": True}),
          "rmsprop": (torch.optim.RMSprop, {"centered": True, "foreach": True}),
          "nadam": (torch.optim.NAdam, {}), "adafactor": (torch.optim.Adafactor, {}),
          "adamax": (torch.optim.Adamax, {}), "rprop": (torch.optim.Rprop, {})}


def check_host(make, steps, plain=None, **options):
    """The relay's run, compared with the plain loop's, whose optimizer has `plain`, too."""
    of_relay = {"where": "host", **options.pop("options", {})}
    loop = Job(make, steps, relay=False, **{**options, **(plain or {})})
    relayed = Job(make, steps, options=of_relay, **options)
    assert different(relayed, loop) == []
    assert not torch.equal(relayed.losses[0], relayed.losses[-1])
    return relayed


@pytest.mark.parametrize("name", FUSED)
def test_bits_of_the_fused_optimizers(name):
    kind, options = FUSED[name]
    relayed = check_host(Words, word_parts(3, 4), {"fused": True}, optimizer=kind, **options)
    assert relayed.relay._update.eager, "proven in the first step, and used from the second"


@pytest.mark.parametrize("name", OTHERS)
def test_bits_of_others(name):
    kind, options = OTHERS[name]
    relayed = check_host(Words, word_parts(3, 4), optimizer=kind, **options)
    assert relayed.relay._update.eager


@pytest.mark.parametrize("options", [{"clip": 0.01}, {"eager": False}, {"keep": 2}, {"keep": 3}],
                         ids=str)
def test_bits_of_steps_at_the_end(options):
    of_relay = {key: value for key, value in options.items() if key != "clip"}
    relayed = check_host(Words, word_parts(3, 4), {"fused": True}, clip=options.get("clip"),
                         options=of_relay)
    assert relayed.relay._update._separable


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("clip", [None, 0.01])
def test_scaler(clip, fused):
    """A step of infinities is skipped."""
    relayed = check_host(Words, word_parts(2, 5), {"fused": True}, fused=fused, clip=clip,
                         compute=lambda model, part: 8 * loss_of(model, part),
                         scaler=lambda: torch.amp.GradScaler("cpu", init_scale=2.0 ** 127))
    steps = {float(state["step"]) for state in relayed.optimizer.state.values()}
    assert steps and max(steps) < 5
    assert getattr(relayed.optimizer, "_step_supports_amp_scaling", None) is fused


def grouped(relayed, change=lambda optimizer, number: None, fused=True, steps=4, **options):
    """Two groups, a schedule, and a change by the program in front of each step."""
    torch.manual_seed(0)
    model = Words()
    small = [each for each in model.parameters() if each.dim() < 2]
    large = [each for each in model.parameters() if each.dim() > 1]
    optimizer = torch.optim.AdamW([{"params": small, "weight_decay": 0.0},
                                   {"params": large, "lr": 3e-3}], lr=1e-2, fused=fused)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    relay = firn.relay(model, optimizer, 2, where="host", **options) if relayed else None
    for number, parts in enumerate(word_parts(2, steps)):
        change(optimizer, number)
        if relay:
            relay.step(lambda part: loss_of(model, part), parts)
        else:
            for part in parts:
                loss_of(model, part).backward()
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
    if relay:
        relay.close()
    return [each.detach() for each in model.parameters()]


@pytest.mark.parametrize("eager", ["auto", False])
def test_schedules_and_groups(eager):
    def change(optimizer, number):
        optimizer.param_groups[0]["betas"] = (0.5 + 0.1 * number, 0.9)
        optimizer.param_groups[1]["weight_decay"] = 0.1 * number
    plain, still = grouped(False, change), grouped(False)
    assert all(map(torch.equal, grouped(True, change, None, eager=eager), plain))
    assert not all(map(torch.equal, plain, still))


def test_an_update_is_made_while_the_layers_before_run():
    """The thread is held in the last layer's update until the first one is run again."""
    torch.manual_seed(0)
    model = Words(layers=3)
    optimizer = torch.optim.AdamW(model.parameters())
    relay = firn.relay(model, optimizer, 2, where="host")
    first, second = word_parts(2, 2)
    relay.step(lambda part: loss_of(model, part), first)
    reached, twin = threading.Event(), relay._update._twin
    step, waited = twin.step, []

    def slow(parameters, gradients):
        if any(each is model.blocks[2].outer.weight for each in parameters):
            waited.append(reached.wait(60))
        step(parameters, gradients)
    twin.step = slow

    def again(*_):
        if torch._C._current_graph_task_id() != -1:
            reached.set()
    model.blocks[1].norm.register_forward_pre_hook(again)
    relay.step(lambda part: loss_of(model, part), second)
    assert waited == [True]


class Lazily:
    """Runs what was submitted when its result is asked for."""

    def __init__(self):
        self.waiting, self.most = 0, 0

    def submit(self, work):
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        future = concurrent.futures.Future()

        def result():
            self.waiting -= 1
            future.set_result(work())
        future.result, future.exception = result, lambda: None
        return future

    def shutdown(self):
        assert self.waiting == 0


@pytest.mark.parametrize("eager", ["auto", False])
def test_gradients_do_not_pile_up_before_a_slow_host(eager):
    """Two updates at the most have begun."""
    torch.manual_seed(0)
    model = Words(layers=6)
    relay = firn.relay(model, torch.optim.AdamW(model.parameters()), 2, where="host", eager=eager)
    relay._update._worker.shutdown()
    lazily = relay._update._worker = Lazily()
    for parts in word_parts(2, 3):
        relay.step(lambda part: loss_of(model, part), parts)
        assert lazily.waiting == 0
    assert lazily.most == 2
    relay.close()


@pytest.mark.parametrize("name", ["block 1", "outside"])
def test_an_exception_in_the_thread(name):
    """The caller gets it once, with the layer's name, and may go on."""
    torch.manual_seed(0)
    model = Words(tied=False)
    optimizer = torch.optim.AdamW(model.parameters())
    relay = firn.relay(model, optimizer, 2, where="host")
    steps = word_parts(2, 3)
    relay.step(lambda part: loss_of(model, part), steps[0])
    wanted = model.blocks[1].outer.weight if name == "block 1" else model.head.weight
    before = {each: each.detach().clone() for each in model.parameters()}
    twin = relay._update._twin
    step = twin.step

    def failing(parameters, gradients):
        if any(each is wanted for each in parameters):
            raise MemoryError("words")
        step(parameters, gradients)
    twin.step = failing
    with pytest.raises(MemoryError, match="words") as caught:
        relay.step(lambda part: loss_of(model, part), steps[1])
    notes = getattr(caught.value, "__notes__", [])
    layer = "blocks.1 (Block)" if name == "block 1" else "the parameters outside of layers"
    assert notes[0] == f"firn.relay: the update of {layer} at the host failed"
    updated = "blocks.2 (Block)" if name == "block 1" else \
        "blocks.0 (Block), blocks.1 (Block), blocks.2 (Block)"
    assert notes[1] == f"firn.relay: these layers had been updated already: {updated}"
    moved = [any(not torch.equal(before[each], each) for each in block.parameters())
             for block in model.blocks]
    assert moved == ([False, False, True] if name == "block 1" else [True, True, True])
    assert torch.equal(before[wanted], wanted)
    assert all(each.grad is None for each in model.parameters())
    twin.step = step
    relay.step(lambda part: loss_of(model, part), steps[2])
    assert not torch.equal(before[wanted], wanted)
    relay.close()


def test_an_exception_elsewhere_leaves_no_update_on_its_way():
    torch.manual_seed(0)
    model = Words()
    relay = firn.relay(model, torch.optim.AdamW(model.parameters()), 2, where="host")
    first, second = word_parts(2, 2)
    relay.step(lambda part: loss_of(model, part), first)

    def fail(*_):
        if torch._C._current_graph_task_id() != -1:
            raise KeyError("words")
    handle = model.blocks[0].register_forward_pre_hook(lambda *_: None)
    model.blocks[0].norm.register_forward_pre_hook(fail)
    with pytest.raises(KeyError, match="words"):
        relay.step(lambda part: loss_of(model, part), second)
    handle.remove()
    now = {name: value.detach().clone() for name, value in model.named_parameters()}
    assert not relay._update._jobs
    relay.close()
    assert all(torch.equal(value, now[name]) for name, value in model.named_parameters())


@pytest.mark.parametrize("eager", [False, True])
def test_the_split_form(eager):
    """Its gradients are those of the device's updates; step() is the program's."""
    def run(where, fused):
        torch.manual_seed(0)
        model = Words(tied=False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
        quietly(firn.relay, model, optimizer, 2, split=True, eager=eager, where=where)
        for parts in word_parts(2, 4):
            loss_of(model, torch.cat(parts)).backward()
            optimizer.step()
            optimizer.zero_grad()
        firn.relay.of(model).close()
        return [each.detach() for each in model.parameters()]
    assert all(map(torch.equal, run("host", None), run("device", True)))


def test_an_optimizer_of_the_programs_own():
    """host_optimizer= makes it of the groups, with the schedule's values at each step."""
    seen = []

    class Mine(torch.optim.Adam):
        def __init__(self, groups):
            seen.append([sorted(group) for group in groups])
            super().__init__(groups, decoupled_weight_decay=True, fused=True)

    assert all(map(torch.equal, grouped(True, fused=None, host_optimizer=Mine), grouped(False)))
    assert len(seen) == 1 and len(seen[0]) == 2
    assert all("lr" in each and "params" in each and "foreach" not in each for each in seen[0])


def test_what_is_done_outside_of_layers_alone():
    """Layers that are frozen: nothing of them is stepped, and nothing is proven."""
    torch.manual_seed(0)
    model = Words(tied=False)
    model.blocks.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    relay = firn.relay(model, optimizer, 2, where="host")
    before = model.head.weight.detach().clone(), model.blocks[0].outer.weight.detach().clone()
    for parts in word_parts(2, 2):
        relay.step(lambda part: loss_of(model, part), parts)
    assert not torch.equal(model.head.weight, before[0])
    assert torch.equal(model.blocks[0].outer.weight, before[1])


def test_gradients_that_the_program_changes_are_refused():
    """In the first step, which would be eager from then on."""
    from firn.relay import Refused
    torch.manual_seed(0)
    model = Words(tied=False)
    optimizer = torch.optim.AdamW(model.parameters())
    quietly(firn.relay, model, optimizer, 2, split=True, eager=True, where="host")
    (parts,) = word_parts(2, 1)
    before = [each.detach().clone() for each in model.parameters()]
    loss_of(model, torch.cat(parts)).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    with pytest.raises(Refused, match="gradients were changed between a layer's backward pass"):
        optimizer.step()
    assert all(map(torch.equal, before, model.parameters()))
    firn.relay.of(model).close()
