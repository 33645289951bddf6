"""firn.relay's steps are the accumulation loop's, to the last bit, in the relay's order."""

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch
from torch import nn

from relay_models import (Block, Job, Words, check_same_bits, different, firn, loss_of, quietly,
                          word_parts)

OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, {}), "adamw foreach": (torch.optim.AdamW, {"foreach": True}),
    "adamw fused": (torch.optim.AdamW, {"fused": True}),
    "adamw amsgrad": (torch.optim.AdamW, {"amsgrad": True}),
    "sgd": (torch.optim.SGD, {}),
    "sgd nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "foreach": True}),
    "adafactor": (torch.optim.Adafactor, {}), "nadam": (torch.optim.NAdam, {}),
    "rmsprop": (torch.optim.RMSprop, {"centered": True})}


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 8])
@pytest.mark.parametrize("tied", [False, True])
def test_bits_of_the_loop(micro_batches, tied):
    check_same_bits(lambda: Words(tied=tied), word_parts(micro_batches, 4))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    kind, options = OPTIMIZERS[name]
    relayed = check_same_bits(Words, word_parts(3, 4), optimizer=kind, **options)
    assert relayed.relay._update.eager, "proven in the first step, and used from the second"


def test_dropout_of_one_micro_batch():
    """It draws in the loop's order by itself; a layer's second run draws the same again."""
    check_same_bits(lambda: Words(drop=0.3), word_parts(1, 4))


def test_dropout_is_drawn_again_in_second_runs():
    """Steps without a rate learn nothing: gradients of a second run belong to its first's loss."""
    torch.manual_seed(0)
    model = Words(drop=0.5)
    relay = quietly(firn.relay, model, torch.optim.SGD(model.parameters(), lr=0.0), 3, eager=False)
    masks = {}

    def keep(module, inputs, result):
        again = torch._C._current_graph_task_id() != -1
        masks.setdefault((threading.current_thread().name, again), []).append(result == 0)
    for block in model.blocks:
        block.drop.register_forward_hook(keep)
    for parts in word_parts(3, 2):
        masks.clear()
        quietly(relay.step, lambda part: loss_of(model, part), parts)
    for number in range(3):
        first, again = (masks[f"relay {number}", which] for which in (False, True))
        assert all(map(torch.equal, first, reversed(again))) and len(first) == 3
    assert not torch.equal(masks["relay 0", False][0], masks["relay 1", False][0])


class Log:
    """(what, layer, micro-batch) of one step, by hooks of the program's own."""

    def __init__(self, model, optimizer):
        self.lines = []
        self._inputs = {}
        for number, block in enumerate(model.blocks):
            block.norm.register_forward_pre_hook(
                lambda module, inputs, number=number: self._forward(number))
            block.inner.weight.register_post_accumulate_grad_hook(
                lambda weight, number=number: self.lines.append(("gradient", number)))
        step = type(optimizer).step
        weights = [block.inner.weight for block in model.blocks]

        def logged(self_, closure=None):
            stepped = [number for number, weight in enumerate(weights) for group in
                       self_.param_groups for each in group["params"] if each is weight and
                       each.grad is not None]
            self.lines.append(("step", *stepped))
            return step(self_, closure)
        optimizer.step = logged.__get__(optimizer)

    def _forward(self, number):
        again = torch._C._current_graph_task_id() != -1
        self.lines.append(("again" if again else "forward", number))


def ordered(keep=0, eager="auto", layers=3, micro_batches=2):
    torch.manual_seed(0)
    model = Words(layers=layers)
    optimizer = torch.optim.AdamW(model.parameters())
    log = Log(model, optimizer)
    relay = firn.relay(model, optimizer, micro_batches, keep=keep, eager=eager)
    for parts in word_parts(micro_batches, 2):
        log.lines.clear()
        relay.step(lambda part: loss_of(model, part), parts)
    return log.lines


def test_layers_are_run_over_all_micro_batches_in_turn():
    expected = [("forward", layer) for layer in (0, 1, 2) for _ in range(2)]
    for layer in (2, 1, 0):
        expected += [("again", layer), ("gradient", layer)] * 2 + [("step", layer)]
    assert ordered() == [*expected, ("step",)]


def test_kept_layers_are_not_run_again():
    first = [("forward", 0)] * 2 + [("forward", 1), ("forward", 2)]
    graph = [("gradient", 2), ("gradient", 1)]
    assert ordered(keep=2) == [*first, *graph, ("forward", 1), ("forward", 2), *graph,
                               *[("again", 0), ("gradient", 0)] * 2, ("step", 0), ("step", 1, 2)]


def test_without_eager_there_is_one_step():
    steps = [line for line in ordered(eager=False) if line[0] == "step"]
    assert steps == [("step", 0, 1, 2)]


@pytest.mark.parametrize("keep", [1, 3])
def test_bits_with_kept_layers(keep):
    check_same_bits(Words, word_parts(3, 3), options={"keep": keep})


def test_gradients_alive_are_one_layers():
    torch.manual_seed(0)
    model = Words(layers=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    relay = firn.relay(model, optimizer, 2)
    alive = []
    for block in model.blocks:
        block.norm.weight.register_post_accumulate_grad_hook(lambda weight: alive.append(
            sum(block.outer.weight.grad is not None for block in model.blocks)))
    for parts in word_parts(2, 2):
        alive.clear()
        relay.step(lambda part: loss_of(model, part), parts)
    assert max(alive) == 1 and len(alive) == 10


@pytest.mark.parametrize("clip", [0.01, 100.0])
def test_clip(clip):
    relayed = check_same_bits(Words, word_parts(3, 3), clip=clip)
    assert not relayed.relay._update.eager
    assert 0.01 < float(relayed.relay.gradient_norm) < 100


@pytest.mark.parametrize("clip", [None, 0.01])
def test_scaler(clip):
    check_same_bits(Words, word_parts(2, 3), clip=clip, scaler=lambda: torch.amp.GradScaler(
        "cpu", init_scale=1024.0, growth_interval=2))


def test_scaler_skips_steps_with_infinities():
    relayed = check_same_bits(
        Words, word_parts(2, 4), compute=lambda model, part: 8 * loss_of(model, part),
        scaler=lambda: torch.amp.GradScaler("cpu", init_scale=2.0 ** 127))
    assert min(float(state["step"]) for state in relayed.optimizer.state.values()) < 4


def autocast_inside(model, part):
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(part[:, :-1])
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), part[:, 1:].flatten())


def cast_again(model, part):
    torch.clear_autocast_cache()  # (or weights stay as they were cast before the last step)
    return loss_of(model, part)


@pytest.mark.parametrize("tied", [False, True])
def test_autocast_inside(tied):
    check_same_bits(lambda: Words(tied=tied), word_parts(3, 3), compute=autocast_inside)


def test_autocast_around():
    with torch.autocast("cpu", torch.bfloat16):
        plain = Job(Words, word_parts(3, 3), compute=cast_again, relay=False)
        relayed = Job(Words, word_parts(3, 3))
    assert different(relayed, plain) == []
    assert different(relayed, Job(Words, word_parts(3, 3), relay=False)) != []


def test_fewer_parts_and_other_shapes():
    steps = [*word_parts(3, 2), *word_parts(2, 1, length=9), *word_parts(3, 1, seed=5)]
    check_same_bits(Words, steps)


def test_gradients_that_were_there_are_added_to():
    def with_gradients(relay):
        torch.manual_seed(0)
        model = Words()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        steps = word_parts(2, 2)
        made = firn.relay(model, optimizer, 2) if relay else None
        for parts in steps:
            loss_of(model, parts[0].flip(0)).backward()
            if made:
                made.step(lambda part: loss_of(model, part), parts)
            else:
                for part in parts:
                    loss_of(model, part).backward()
                optimizer.step()
                optimizer.zero_grad()
        return list(model.parameters())
    assert all(map(torch.equal, with_gradients(True), with_gradients(False)))


def test_the_callers_state_is_in_the_threads():
    import contextvars
    name = contextvars.ContextVar("name")
    seen = []

    class Count(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(threading.current_thread().name)
            return function(*args, **(kwargs or {}))

    torch.manual_seed(0)
    model = Words()
    relay = firn.relay(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    first, second = word_parts(2, 2)
    relay.step(lambda part: loss_of(model, part), first)

    def compute(part):
        assert name.get() == "caller"
        name.set("thread")
        return loss_of(model, part)
    name.set("caller")
    with Count():
        relay.step(compute, second)
    assert name.get() == "caller"
    assert {"relay 0", "relay 1"} <= set(seen)


def test_outside_of_step_the_model_is_as_always():
    torch.manual_seed(0)
    model = Words()
    words = word_parts(1, 1)[0][0]
    before = model(words)
    relay = firn.relay(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    assert torch.equal(model(words), before)
    loss_of(model, words).backward()
    gradients = [each.grad for each in model.parameters()]
    relay.close()
    model.zero_grad()
    loss_of(model, words).backward()
    assert all(map(torch.equal, gradients, (each.grad for each in model.parameters())))
    assert all("forward" not in vars(each) for each in model.modules())
    again = firn.relay(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    assert firn.relay.of(model) is again


def test_copies_of_the_model_are_their_own():
    torch.manual_seed(0)
    model = Words()
    relay = firn.relay(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    words = word_parts(1, 1)[0][0]
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            other.blocks[0].outer.weight.add_(1)
        assert not torch.equal(other(words), model(words))
        assert firn.relay.of(other) is None
    assert firn.relay.of(model) is relay


def test_nothing_of_a_step_stays_alive():
    torch.manual_seed(0)
    model = Words()
    relay = firn.relay(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    kept = []

    def compute(part):
        value = model.embedding(part[:, :-1])
        for block in model.blocks:
            value = block(value)
            kept.append(weakref.ref(value))
        return value.square().mean()
    for parts in word_parts(2, 3):
        relay.step(compute, parts)
    gc.collect()
    assert len(kept) == 18 and all(each() is None for each in kept)
    assert not [each for each in threading.enumerate() if each.name.startswith("relay")]


def test_schedulers_and_groups():
    def run(relay):
        torch.manual_seed(0)
        model = Words()
        small = [each for each in model.parameters() if each.dim() < 2]
        large = [each for each in model.parameters() if each.dim() > 1]
        optimizer = torch.optim.AdamW([{"params": small, "weight_decay": 0.0},
                                       {"params": large, "lr": 3e-3}], lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
        made = firn.relay(model, optimizer, 2) if relay else None
        for parts in word_parts(2, 4):
            if made:
                made.step(lambda part: loss_of(model, part), parts)
            else:
                for part in parts:
                    loss_of(model, part).backward()
                optimizer.step()
                optimizer.zero_grad()
            scheduler.step()
        assert [len(group["params"]) for group in optimizer.param_groups] == [len(small),
                                                                             len(large)]
        return list(model.parameters())
    assert all(map(torch.equal, run(True), run(False)))


class Turned(Block):
    """Its result is a view, as transposed heads of attention are."""

    def forward(self, value):
        return super().forward(value).transpose(0, 1).contiguous().transpose(0, 1)


def test_results_are_changed_in_place():
    def compute(model, part):
        value = model.embedding(part)
        for block in model.blocks:
            value = block(value)
            value += 0.1
            value[:, 0] *= 2
        return value.square().mean()
    check_same_bits(lambda: Words(block=Turned), word_parts(2, 3), compute=compute)


def test_parameters_that_something_else_uses_too():
    """A penalty on the layers' weights, and a layer whose weight makes the input."""
    def compute(model, part):
        value = model.embedding(part) + model.blocks[1].outer.bias
        for block in model.blocks:
            value = block(value)
        penalty = sum(each.square().sum() for each in model.blocks[0].parameters())
        return value.square().mean() + 0.1 * penalty
    check_same_bits(lambda: Words(tied=False), word_parts(3, 4), compute=compute)


def test_a_mutated_order_is_seen(monkeypatch):
    """The comparison above can tell: sums in another order differ."""
    from firn.relay.turns import Turn
    plain = Job(Words, word_parts(3, 3), relay=False)
    begin = Turn.begin_backward

    def late(self, call, before):
        if self.number == 0:
            self.seam()
        begin(self, call, before)
    monkeypatch.setattr(Turn, "begin_backward", late)
    assert different(Job(Words, word_parts(3, 3)), plain) == [], "each waits for those before it"
    monkeypatch.setattr(Turn, "has_come_to", lambda self, place: True)
    assert different(Job(Words, word_parts(3, 3)), plain) != []


def test_schedule_looped_bfs_has_the_same_gradients(tmp_path):
    """torch's own breadth-first pipeline schedule, of one rank that has all stages."""
    import torch.distributed as dist
    from torch.distributed import pipelining
    from torch.distributed.pipelining import schedules
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(12) for _ in range(4)))
    values, targets = torch.randn(6, 5, 12), torch.randn(6, 5, 12)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    relay = firn.relay(model, optimizer, 3, eager=False)
    found = []
    optimizer.register_step_pre_hook(lambda *_: found.append(
        [each.grad.clone() for each in model.parameters()]))
    parts = list(zip(values.chunk(3), targets.chunk(3)))

    def loss(output, target):
        return nn.functional.mse_loss(output, target)
    with torch.no_grad():
        before = [each.clone() for each in model.parameters()]
    for _ in range(2):
        quietly(relay.step, lambda part: loss(model(part[0]), part[1]) / 3, parts)
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), before):
                parameter.copy_(value)
    relay.close()

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        stages = [pipelining.PipelineStage(layer, number, 4, torch.device("cpu"))
                  for number, layer in enumerate(model)]
        for stage in stages:  # (gloo sends nothing to itself)
            stage._get_init_p2p_neighbors_ops = list
        schedule = pipelining.ScheduleLoopedBFS(stages, n_microbatches=3, loss_fn=loss)
        runtime = schedules._PipelineScheduleRuntime(stages, n_microbatches=3, loss_fn=loss)
        runtime._prepare_schedule_with_comms(schedule.pipeline_order)
        runtime.step(values, target=targets)
    finally:
        dist.destroy_process_group()
    theirs = [each.grad for each in model.parameters()]
    for ours, other in zip(found[1], theirs, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-6, atol=1e-7)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, value):
        return value + torch.tanh(self.inner(value))


def test_convolutions_cut_their_sums_as_in_the_callers_thread():
    """OpenMP has another number of threads in a new one, as long as nothing sets it."""
    generator = torch.Generator().manual_seed(1)
    steps = [[torch.randn(2, 4, 5, 5, generator=generator) for _ in range(3)] for _ in range(4)]
    check_same_bits(lambda: nn.Sequential(*(Convolution() for _ in range(3))), steps,
                    compute=lambda model, part: model(part).square().mean())
