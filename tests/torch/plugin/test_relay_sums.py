"""accumulate=torch.float32: gradients of 16 bits are summed in 32 over the micro-batches."""

import pytest
import torch

from host_loop import MasterLoop
from relay_models import Words, firn, loss_of, quietly, word_parts

SMALL = [torch.bfloat16, torch.float16]


def words(dtype, **options):
    torch.manual_seed(0)
    return Words(**options).to(dtype)


def gradients(make, parts, accumulate, split=False, **options):
    """Of the third step, as the optimizer finds them: {name: tensor}."""
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    found = {}
    optimizer.register_step_pre_hook(lambda *_: found.update(
        (name, each.grad.clone()) for name, each in model.named_parameters()))
    relay = quietly(firn.relay, model, optimizer, len(parts), accumulate=accumulate, split=split,
                    **options)
    for _ in range(3):
        if split:
            quietly(lambda: loss_of(model, torch.cat(parts)).backward())
            optimizer.step()
            optimizer.zero_grad()
        else:
            quietly(relay.step, lambda part: loss_of(model, part), parts)
    return found


def by_hand(make, parts, sum_in):
    """In `sum_in`, not rounded at the end."""
    model, sums = make(), {}
    for part in parts:
        loss_of(model, part).backward()
        for name, each in model.named_parameters():
            now = each.grad.to(sum_in)
            sums[name] = sums[name] + now if name in sums else now
            each.grad = None
    return sums


@pytest.mark.parametrize("keep", [0, 1, 3])
@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_sums_are_those_of_32_bits_rounded_once(dtype, keep):
    (parts,) = word_parts(5, 1)
    found = gradients(lambda: words(dtype), parts, torch.float32, keep=keep)
    wide = by_hand(lambda: words(dtype), parts, torch.float32)
    inside = [name for name in wide if name.startswith("blocks")]
    assert len(inside) == 18
    for name in inside:
        assert torch.equal(found[name], wide[name].to(dtype)), name
    plain = gradients(lambda: words(dtype), parts, None, keep=keep)
    for name in wide:  # tied ones, outside of layers, are the plain loop's
        assert name in inside or torch.equal(found[name], plain[name])
    assert any(not torch.equal(found[name], plain[name]) for name in inside)


@pytest.mark.parametrize("dtype", SMALL, ids=str)
def test_they_are_closer_to_sums_of_64_bits(dtype):
    (parts,) = word_parts(16, 1)
    exact = by_hand(lambda: words(dtype), parts, torch.float64)

    def error(accumulate):
        found = gradients(lambda: words(dtype), parts, accumulate)
        return sum(float((found[name].double() - exact[name]).square().sum())
                   for name in exact if name.startswith("blocks")) ** 0.5
    wide, plain = error(torch.float32), error(None)
    assert 0 < wide < 0.7 * plain, (wide, plain)


def test_one_layers_sums_are_alive():
    from firn.relay import sums
    (parts,) = word_parts(3, 1)
    model = words(torch.bfloat16, layers=4)
    relay = firn.relay(model, torch.optim.SGD(model.parameters(), lr=0.1), 3,
                       accumulate=torch.float32)
    relay.step(lambda part: loss_of(model, part), parts)
    alive, fold = [], sums.Sums.fold

    def counting(self, parameters):
        fold(self, parameters)
        alive.append(len(self._sums))
    of_layer = len(list(model.blocks[0].parameters()))
    relay._sums.fold = counting.__get__(relay._sums)
    relay.step(lambda part: loss_of(model, part), parts)
    assert max(alive) == of_layer and alive.count(of_layer) >= 4 * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_wider_types_are_as_always(dtype):
    (parts,) = word_parts(3, 1)
    plain = gradients(lambda: words(dtype), parts, None)
    assert all(map(torch.equal, gradients(lambda: words(dtype), parts, torch.float32).values(),
                   plain.values()))


def test_the_split_form():
    """Within a layer's backward pass over the parts of a batch."""
    (parts,) = word_parts(5, 1)

    def make():
        return words(torch.bfloat16, tied=False)
    found = gradients(make, parts, torch.float32, split=True)
    plain = gradients(make, parts, None, split=True)
    model = make()
    loss_of(model.double(), torch.cat(parts)).backward()
    exact = {name: each.grad for name, each in model.named_parameters()}
    inside = [name for name in found if name.startswith("blocks")]

    def error(these):
        return sum(float((these[name].double() - exact[name]).square().sum()) for name in inside)
    assert 0 < error(found) < 0.9 * error(plain)


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("where", ["device", "host"])
def test_gradients_that_were_there_and_clipping(where, clip):
    """The loop with masters by hand, whose parameters have gradients before the step."""
    steps = word_parts(3, 3)

    def run(relayed):
        model = words(torch.bfloat16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if relayed:
            step = quietly(firn.relay, model, optimizer, 3, accumulate=torch.float32, where=where,
                           clip=clip).step
        else:
            loop = MasterLoop(model, optimizer.param_groups, torch.optim.SGD, lr=0.1,
                              sum_in=torch.float32, wide=model.blocks.parameters())
            loop.clip, step = clip, loop.step
        for number, parts in enumerate(steps[:3 if where == "host" else 1]):
            if number < 2:  # (as a first part: its sum begins with it)
                loss_of(model, parts[0].flip(0)).backward()
            quietly(step, lambda part: loss_of(model, part), parts)
        return [each.detach() for each in model.parameters()]
    if where == "host":
        assert all(map(torch.equal, run(True), run(False)))
    else:  # SGD without momentum: one step of a bfloat16 parameter is one rounding, as a master's
        for one, other in zip(run(True), run(False)):
            torch.testing.assert_close(one, other, rtol=2 ** -7, atol=1e-3)


def test_an_exception_leaves_no_sum():
    model = words(torch.bfloat16)
    relay = firn.relay(model, torch.optim.SGD(model.parameters(), lr=0.1), 2,
                       accumulate=torch.float32)
    first, second = word_parts(2, 2)
    relay.step(lambda part: loss_of(model, part), first)
    had = model.blocks[2].outer.weight
    had.grad = torch.ones_like(had)
    runs = []

    def fail(*_):
        if torch._C._current_graph_task_id() != -1:
            runs.append(relay._sums._sums.keys() & set(model.blocks[1].parameters()))
            if len(runs) == 2:
                raise KeyError("words")
    handle = model.blocks[1].norm.register_forward_pre_hook(fail)
    with pytest.raises(KeyError, match="words"):
        relay.step(lambda part: loss_of(model, part), second)
    handle.remove()
    assert not relay._sums._sums and len(runs[1]) == len(list(model.blocks[1].parameters()))
    assert had.grad is None, "its layer was updated"
    assert all(each.grad is None for each in model.parameters() if each is not had)
