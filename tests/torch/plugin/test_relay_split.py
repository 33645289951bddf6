"""firn.relay(split=True): the script as it is, with each layer over the parts of the batch."""

import copy
import warnings

import pytest
import torch
from torch import nn

from relay_models import Block, Words, firn, loss_of, quietly, word_parts

Refused = firn.relay.Refused


def chunked(model, micro_batches):
    """The explicit reference: each block runs over chunks of its input."""
    for block in model.blocks:
        def forward(value, *, _forward=block.forward):
            bounds = [len(value) * part // micro_batches for part in range(micro_batches + 1)]
            return torch.cat([_forward(value[begin:end])
                              for begin, end in zip(bounds, bounds[1:])])
        block.forward = forward


def train(way, micro_batches, steps=4, make=Words, optimizer=torch.optim.AdamW, clip=None,
          rows=7, **options):
    """`way`: plain, chunked, or relay. Losses and parameters."""
    torch.manual_seed(0)
    model = make()
    made = optimizer(model.parameters(), lr=1e-2)
    if way == "relay":
        same = quietly(firn.relay, model, made, micro_batches, split=True, **options)
        assert same is model
    elif way == "chunked":
        chunked(model, micro_batches)
    losses = []
    for (words,) in word_parts(1, steps, rows=rows):
        loss = loss_of(model, words)
        made.zero_grad()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        quietly(made.step)
        losses.append(loss.detach())
    return losses + [each.detach() for each in model.parameters()]


def equal(one, other):
    return all(map(torch.equal, one, other))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("eager", [False, True])
def test_one_part_has_the_plain_programs_bits(tied, eager):
    make = lambda: Words(tied=tied, drop=0.2)  # noqa: E731
    assert equal(train("relay", 1, make=make, eager=eager), train("plain", 1, make=make))


@pytest.mark.parametrize("micro_batches", [2, 3, 7, 20])
@pytest.mark.parametrize("eager", [False, True])
def test_parts(micro_batches, eager):
    """Bits of chunks that are cut by hand, but for the order in which a parameter's gradients are
    summed (those of chunks that ran last come first there)."""
    relayed = train("relay", micro_batches, eager=eager, steps=2)
    for one, other in zip(relayed, train("chunked", min(7, micro_batches), steps=2), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    first = train("chunked", min(7, micro_batches), steps=1)[0]
    assert torch.equal(relayed[0], first)
    assert equal(relayed, train("relay", micro_batches, eager=not eager, steps=2))


def test_gradients_are_those_of_parts_in_ascending_order():
    torch.manual_seed(0)
    model = Words(layers=2, tied=False)
    (words,), = word_parts(1, 1, rows=6)
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quietly(firn.relay, model, optimizer, 3, split=True)
    loss_of(model, words).backward()
    values = [reference.embedding(words[:, :-1])]
    with torch.no_grad():
        for block in reference.blocks:
            values.append(torch.cat([block(part) for part in values[-1].chunk(3)]))
    top = values[-1].detach().requires_grad_()
    nn.functional.cross_entropy(reference.head(top).flatten(0, 1),
                                words[:, 1:].flatten()).backward()
    gradient = top.grad
    for block, value in zip(reversed(reference.blocks), reversed(values[:-1])):
        parts = [part.detach().requires_grad_() for part in value.chunk(3)]
        for part, given in zip(parts, gradient.chunk(3)):
            block(part).backward(given)
        gradient = torch.cat([part.grad for part in parts])
    values[0].backward(gradient)
    for (name, one), other in zip(model.named_parameters(), reference.parameters()):
        assert torch.equal(one.grad, other.grad), name


def test_clipping_and_evaluation_are_the_programs():
    assert equal(train("relay", 1, clip=0.01), train("plain", 1, clip=0.01))
    torch.manual_seed(0)
    model = Words()
    (words,), = word_parts(1, 1, rows=6)
    before = model(words)
    quietly(firn.relay, model, torch.optim.SGD(model.parameters(), lr=0.1), 3, split=True)
    with torch.no_grad():
        assert torch.equal(model(words), before)
    firn.relay.of(model).close()
    assert torch.equal(model(words), before) and firn.relay.of(model) is None


def test_clipping_is_refused_where_layers_step_in_the_backward_pass():
    with pytest.raises(Refused, match=r"gradients were changed between .*eager=False"):
        train("relay", 2, clip=0.01, eager=True)


def test_layers_step_in_the_backward_pass():
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quietly(firn.relay, model, optimizer, 2, split=True, eager=True)
    for number, (words,) in enumerate(word_parts(1, 3, rows=4)):
        before = [each.clone() for each in model.parameters()]
        loss_of(model, words).backward()
        moved = {name.partition(".")[0] for (name, value), old in
                 zip(model.named_parameters(), before) if not torch.equal(value, old)}
        assert moved == ({"blocks"} if number else set())
        assert all(each.grad is None for each in model.blocks.parameters()) == bool(number)
        optimizer.step()
        optimizer.zero_grad()


def test_a_step_that_never_came():
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quietly(firn.relay, model, optimizer, 2, split=True, eager=True)
    first, second, third = (words for (words,) in word_parts(1, 3, rows=4))
    loss_of(model, first).backward()
    optimizer.step()
    loss_of(model, second).backward()
    for mode in (torch.enable_grad, torch.no_grad):
        with mode(), pytest.raises(Refused, match=r"3 layers were updated in the backward pass, "
                                   r"and optimizer.step\(\) did not follow"):
            loss_of(model, third)
    optimizer.step()
    loss_of(model, third).backward()


def test_a_gradient_from_elsewhere_behind_the_update():
    """A penalty before the layers: its gradient comes last."""
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quietly(firn.relay, model, optimizer, 2, split=True, eager=True)
    with pytest.raises(Refused, match="gradients were changed .*its parameters elsewhere"):
        for (words,) in word_parts(1, 3, rows=4):
            early = model.blocks[2].outer.bias.sum() * 0.1
            value = model.embedding(words) + early
            for block in model.blocks:
                value = block(value)
            value.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


class Attention(nn.Module):
    """As torch's by default: the first dimension is time."""

    def __init__(self, width=12, drop=0.0, batch_first=False):
        super().__init__()
        self.body = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=drop,
                                               batch_first=batch_first)

    def forward(self, value):
        return self.body(value)


class First(Attention):
    def __init__(self, width=12, drop=0.0):
        super().__init__(width, drop, batch_first=True)


def test_what_is_no_batch_is_refused():
    with pytest.raises(Refused, match=r"blocks.0 \(Attention\) has other results over parts of the "
                       r"batch .*batch_first"):
        train("relay", 2, make=lambda: Words(block=Attention))
    for one, other in zip(*(train(way, 2, make=lambda: Words(block=First),
                                  optimizer=torch.optim.SGD) for way in ("relay", "plain"))):
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-3)


class Masked(Block):
    """With a mask that is as large as the batch, and is none of it, and results of other shapes."""

    def forward(self, value, mask=None):
        value = super().forward(value)
        if mask is not None:
            value = torch.einsum("st,bte->bse", mask, value)
        return value, self.inner.weight.square().sum(), value.sum((1, 2))


@pytest.mark.parametrize("rows", [6, 5])  # the sequence is 6 long
def test_arguments_that_are_no_batch(rows):
    def run(split):
        torch.manual_seed(0)
        model = Words(block=Masked)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if split:
            quietly(firn.relay, model, optimizer, 3, split=True)
        (words,), = word_parts(1, 1, rows=rows, length=6)
        mask = torch.tril(torch.ones(6, 6)) / 6
        value, total = model.embedding(words), 0.0
        for block in model.blocks:
            value, size, sums = block(value, mask)
            total = total + 0.01 * size + sums.square().mean()
        total.backward()
        return [each.grad for each in model.parameters()]
    if rows == 6:
        with pytest.raises((Refused, RuntimeError)):
            run(True)
        return
    for one, other in zip(run(True), run(False)):
        if other is None:
            assert one is None
            continue
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_transformers():
    transformers = pytest.importorskip("transformers")

    def run(micro_batches):
        torch.manual_seed(0)
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(
            vocab_size=61, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
            dropout_rate=0.0, decoder_start_token_id=0, pad_token_id=0))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if micro_batches:
            quietly(firn.relay, model, optimizer, micro_batches, split=True)
        words = torch.randint(61, (6, 9), generator=torch.Generator().manual_seed(1))
        model(input_ids=words, labels=words).loss.backward()
        return [each.grad for each in model.parameters()]
    plain = run(0)
    assert equal(run(1), plain)
    for one, other in zip(run(3), plain):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_autocast():
    """Half the bits: the comparison of whole and parts is as loose."""
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quietly(firn.relay, model, optimizer, 2, split=True)
    (words,), = word_parts(1, 1, rows=4)
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, words)
    loss.backward()
    with_relay = [each.grad.clone() for each in model.parameters()]
    firn.relay.of(model).close()
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model, words)
    loss.backward()
    for one, other in zip(with_relay, (each.grad for each in model.parameters())):
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.02)


def test_an_exception_in_a_backward_pass_leaves_the_relay_in_place():
    torch.manual_seed(0)
    model = Words()
    quietly(firn.relay, model, torch.optim.SGD(model.parameters(), lr=0.1), 2, split=True)
    (words,), = word_parts(1, 1, rows=4)
    def fail(gradient):
        raise KeyError("words")
    handle = model.blocks[1].inner.weight.register_hook(fail)
    with pytest.raises(KeyError, match="words"):
        loss_of(model, words).backward()
    handle.remove()
    model.zero_grad()
    calls = []
    model.blocks[0].norm.register_forward_hook(lambda *_: calls.append(1))
    loss_of(model, words).backward()
    assert len(calls) == 4  # two parts, each twice


def test_nothing_is_said_of_a_call_that_is_fine():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.manual_seed(0)
        model = Words()
        firn.relay(model, torch.optim.SGD(model.parameters(), lr=0.1), 2, split=True, eager=True)
        (words,), = word_parts(1, 1, rows=4)
        loss_of(model, words).backward()
