"""FIRN_RELAY: a relay by itself, in programs that know nothing of it. With one micro-batch every
bit is the plain program's; the first step is plain, and from the second on layers run again."""

import copy
import io
import re
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from conftest import PYTHON
from relay_models import Block, Words, firn, loss_of, quietly, word_parts

doors_of = __import__("firn.relay.doors", fromlist=["Doors"])


@pytest.fixture
def automatic():
    """automatic(micro_batches): opens the doors, until the test ends or opens others."""
    opened = []

    def open_doors(micro_batches):
        while opened:
            opened.pop().close()
        if micro_batches:
            opened.append(doors_of.Doors(micro_batches))
    yield open_doors
    open_doors(0)


def words_of(steps, rows=6, seed=1):
    return [words for (words,) in word_parts(1, steps, seed=seed, rows=rows)]


def results(model, losses):
    return [each.detach().clone() for each in (*losses, *model.parameters(), *model.buffers())] + \
        [each.grad for each in model.parameters() if each.grad is not None]


def equal(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


def close(one, other):
    for first, second in zip(one, other, strict=True):
        torch.testing.assert_close(first, second, rtol=2e-2, atol=2e-3)


class Counting(Block):
    """Counts the runs of all blocks in the class's own list, which nothing else looks at."""

    runs: list = []

    def forward(self, value):
        Counting.runs.append(torch.is_grad_enabled())
        return super().forward(value)


def plain_steps(model, optimizer, steps=4, rows=6):
    losses = []
    for words in words_of(steps, rows):
        loss = loss_of(model, words)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss)
    return losses


def accumulating(model, optimizer):
    """Two micro-steps a step, a penalty on all parameters, and gradients that stay allocated."""
    losses = []
    for number, words in enumerate(words_of(8)):
        penalty = sum(each.square().sum() for each in model.parameters())
        loss = (loss_of(model, words) + 0.01 * penalty) / 2
        loss.backward()
        losses.append(loss)
        if number % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    return losses


def twice_before_backward(model, optimizer):
    losses = []
    words = words_of(8)
    for first, second in zip(words[::2], words[1::2]):
        loss = loss_of(model, first) + loss_of(model, second).square()
        loss.backward()
        optimizer.step()
        losses.append(loss)
        if len(losses) == 2:
            optimizer.zero_grad()
    return losses


def scaled_under_autocast(model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 117, growth_interval=2)
    losses = []
    for words in words_of(7):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, words)
        optimizer.zero_grad()
        scaler.scale(loss * 2.0 ** 10).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss)
    return losses


def evaluated_in_between(model, optimizer):
    losses = []
    for words in words_of(4):
        model.train()
        losses += plain_steps(model, optimizer, 1)
        model.eval()
        losses.append(loss_of(model, words))  # (with gradients, and no backward pass)
        with torch.no_grad():
            losses.append(loss_of(model, words))
        assert losses[-1].equal(losses[-2])
    return losses


def any_backward_pass(model, optimizer):
    """retain_graph, grad(), backward(inputs=...)."""
    losses = []
    for words in words_of(3):
        loss = loss_of(model, words)
        some = [model.blocks[1].inner.weight, model.embedding.weight]
        slopes = torch.autograd.grad(loss, some, retain_graph=True)
        loss.backward(inputs=some, retain_graph=True)
        loss.backward(retain_graph=True)
        optimizer.step()
        losses += [loss, *slopes]
    return losses


def by_slopes_of_slopes(model, optimizer):
    losses = []
    for words in words_of(3):
        loss = loss_of(model, words)
        some = [model.blocks[1].inner.weight, model.embedding.weight]
        slopes = torch.autograd.grad(loss, some, create_graph=True)
        (loss + sum(each.square().sum() for each in slopes)).backward()
        optimizer.step()
        losses.append(loss)
        if len(losses) == 1:
            optimizer.zero_grad()
    return losses


class Checkpointed(Words):
    reentrant = False

    def forward(self, words):
        value = self.embedding(words)
        for block in self.blocks:
            value = checkpoint(block, value, use_reentrant=self.reentrant)
        return self.head(value)


class Reentrant(Checkpointed):
    reentrant = True


PROGRAMS = [plain_steps, accumulating, twice_before_backward, scaled_under_autocast,
            evaluated_in_between, any_backward_pass]


def run(train, make, groups=None):
    torch.manual_seed(0)
    model = make()
    given = model.parameters() if groups is None else groups(model)
    optimizer = torch.optim.AdamW(given, lr=1e-2)
    return results(model, train(model, optimizer)), firn.relay.of(model)


@pytest.mark.parametrize("train", PROGRAMS)
@pytest.mark.parametrize("tied", [False, True])
def test_one_micro_batch_has_the_programs_bits(automatic, capfd, train, tied):
    make = lambda: Words(tied=tied, drop=0.2, block=Counting)  # noqa: E731
    Counting.runs.clear()
    plain, _ = run(train, make)
    runs = len(Counting.runs)
    automatic(1)
    relayed, relay = run(train, make)
    assert equal(relayed, plain)
    assert relay is not None and relay.layers == ["blocks.0", "blocks.1", "blocks.2"]
    assert capfd.readouterr().err == \
        "firn: relay: 3 layers of Words.blocks, 1 micro-batch, from AdamW's second step on\n"
    assert len(Counting.runs) - runs > 1.4 * runs  # they did run again


def test_a_graph_of_the_backward_pass(automatic, capfd):
    make = lambda: Words(tied=False)  # noqa: E731
    plain, _ = run(by_slopes_of_slopes, make)
    automatic(2)
    relayed, relay = run(by_slopes_of_slopes, make)
    assert relay is not None
    close(relayed, plain)
    capfd.readouterr()
    automatic(1)
    relayed, relay = run(by_slopes_of_slopes, make)
    assert relay is None and equal(relayed, plain)
    assert "firn: relay: off for Words: a backward pass with create_graph=True reaches layer " \
        "blocks.2 (Block): its bits would be others" in capfd.readouterr().err


class Twice(Words):
    """Each layer's input depends on the layer's own parameters."""

    def forward(self, words):
        value = self.embedding(words)
        for block in self.blocks:
            value = block(block(value))
        return self.head(value)


def test_a_graph_of_the_backward_pass_where_layers_run_twice(automatic):
    plain, _ = run(by_slopes_of_slopes, lambda: Twice(tied=False).double())
    automatic(2)
    relayed, relay = run(by_slopes_of_slopes, lambda: Twice(tied=False).double())
    assert relay is not None
    for first, second in zip(relayed, plain, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("train", PROGRAMS)
@pytest.mark.parametrize("micro_batches", [2, 4])
def test_several_micro_batches_are_close(automatic, train, micro_batches):
    make = lambda: Words(tied=False)  # noqa: E731
    plain, _ = run(train, make)
    automatic(micro_batches)
    relayed, relay = run(train, make)
    assert relay is not None
    close(relayed, plain)


def test_layers_run_in_parts_from_the_second_step_on(automatic):
    automatic(3)
    torch.manual_seed(0)
    model = Words(block=Counting)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = []
    for number, words in enumerate(words_of(5)):
        model.blocks[1].norm.weight.requires_grad_(number < 3)
        Counting.runs.clear()
        loss_of(model, words).backward()
        counts.append(sum(Counting.runs))  # with gradients
        optimizer.step()
    # The first step: once, and once more to compare. Then three parts, forward and backward. In the
    # fourth step one layer's calls are of another kind.
    assert counts == [3 * 2, 3 * 2 * 3, 3 * 2 * 3, 2 + 2 * 2 * 3, 3 * 2 * 3]


@pytest.mark.parametrize("kind", [Checkpointed, Reentrant])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_programs_own_checkpoints(automatic, kind, micro_batches):
    make = lambda: kind(tied=False, drop=0.2 if micro_batches == 1 else 0.0)  # noqa: E731
    plain, _ = run(plain_steps, make)
    automatic(micro_batches)
    relayed, relay = run(plain_steps, make)
    assert relay is not None
    if micro_batches == 1:
        assert equal(relayed, plain)
    close(relayed, plain)


def frozen(model):
    """LoRA: layers whose weights stay, but for some."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("inner.weight"))
    return [each for each in model.parameters() if each.requires_grad]


def in_groups(model):
    return [{"params": model.blocks.parameters(), "lr": 1e-3},
            {"params": [model.embedding.weight], "weight_decay": 0.0}]


@pytest.mark.parametrize("groups", [frozen, in_groups])
def test_frozen_parameters_and_groups(automatic, groups):
    make = lambda: Words(drop=0.1)  # noqa: E731
    plain, _ = run(plain_steps, make, groups)
    automatic(1)
    relayed, relay = run(plain_steps, make, groups)
    assert equal(relayed, plain) and relay is not None


def thawing(model, optimizer):
    """A layer that begins to train later."""
    losses = plain_steps(model, optimizer, 2)
    for parameter in model.blocks[0].parameters():
        parameter.requires_grad_(True)
    optimizer.add_param_group({"params": list(model.blocks[0].parameters())})
    return losses + plain_steps(model, optimizer, 3)


def all_but_one(model):
    model.blocks[0].requires_grad_(False)
    model.embedding.requires_grad_(False)
    return [each for each in model.parameters() if each.requires_grad]


def test_a_layer_that_thaws(automatic):
    make = lambda: Words(tied=False)  # noqa: E731
    plain, _ = run(thawing, make, all_but_one)
    automatic(1)
    relayed, relay = run(thawing, make, all_but_one)
    assert equal(relayed, plain) and relay is not None


class Critic(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width) for _ in range(3)))
        self.head = nn.Linear(width, 1)

    def forward(self, value):
        return self.head(self.blocks(value)).mean((1, 2))


def adversaries():
    """Two models, two optimizers, and a penalty on the slope (WGAN-GP)."""
    torch.manual_seed(0)
    maker, critic = nn.Sequential(*(Block(12) for _ in range(3))), Critic()
    makes, judges = (torch.optim.Adam(each.parameters(), lr=1e-3) for each in (maker, critic))
    losses = []
    for _ in range(4):
        real, fake = torch.randn(6, 5, 12), maker(torch.randn(6, 5, 12))
        between = ((real + fake) / 2).detach().requires_grad_()
        slope, = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
        loss = critic(fake.detach()).mean() - critic(real).mean() + 10 * penalty
        judges.zero_grad()
        loss.backward()
        judges.step()
        makes.zero_grad()
        lost = -critic(fake).mean()
        lost.backward()
        makes.step()
        losses += [loss, lost]
    found = results(maker, losses) + results(critic, ())
    return found, [firn.relay.of(each) for each in (maker, critic)]


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_two_models_with_a_penalty_on_the_slope(automatic, capfd, micro_batches):
    plain, _ = adversaries()
    automatic(micro_batches)
    relayed, relays = adversaries()
    said = sorted(each.partition(" micro")[0] for each in capfd.readouterr().err.splitlines())
    assert said[:2] == [f"firn: relay: 3 layers of Critic.blocks, {micro_batches}",
                        f"firn: relay: 3 layers of Sequential, {micro_batches}"]
    if micro_batches == 1:
        assert equal(relayed, plain)
        assert relays[0] is not None and relays[1] is None and len(said) == 3
    else:
        close(relayed, plain)
        assert None not in relays and relays[0] is not relays[1] and len(said) == 2


def test_a_model_of_parts_that_are_called_one_by_one(automatic, capfd):
    """Nothing is called as the whole model."""
    def make():
        return nn.ModuleDict({"token": nn.Embedding(41, 12), "body": Critic(), "head":
                              nn.Linear(12, 41)})

    def train(model, optimizer):
        losses = []
        for words in words_of(4):
            value = model["body"].blocks(model["token"](words[:, :-1]))
            loss = functional.cross_entropy(model["head"](value).flatten(0, 1),
                                            words[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return losses
    plain, _ = run(train, make)
    automatic(1)
    relayed, relay = run(train, make)
    assert equal(relayed, plain) and relay is not None
    assert capfd.readouterr().err.count("\n") == 1


def test_the_model_as_a_value(automatic):
    """Copies and files of it have no relay, and the same bits."""
    automatic(2)
    torch.manual_seed(0)
    model = Words(drop=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    plain_steps(model, optimizer)
    keys = list(model.state_dict())
    assert keys == list(Words(drop=0.1).state_dict())
    file = io.BytesIO()
    torch.save(model, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    words, = words_of(1)
    with torch.no_grad():
        model.eval()
        expected = model(words)
        for other in (loaded, copy.deepcopy(model)):
            assert firn.relay.of(other) is None
            assert torch.equal(other.eval()(words), expected)
    state = copy.deepcopy(model.state_dict())
    model.train()
    plain_steps(model, optimizer)
    model.load_state_dict(state)
    copy.deepcopy(optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    plain_steps(model, optimizer)
    assert firn.relay.of(model) is not None


class Failing(Block):
    error = None

    def forward(self, value):
        value = super().forward(value)
        if Failing.error is not None:
            raise Failing.error
        return value


@pytest.mark.parametrize("error", [KeyError("words"), KeyboardInterrupt(), MemoryError()])
def test_exceptions_in_the_layers(automatic, monkeypatch, error):
    def train(model, optimizer):
        losses = []
        for number in range(6):
            monkeypatch.setattr(Failing, "error", error if number % 2 else None)
            try:
                losses += plain_steps(model, optimizer, 1)
            except type(error):
                assert number % 2
        return losses
    make = lambda: Words(block=Failing)  # noqa: E731
    plain, _ = run(train, make)
    automatic(1)
    relayed, relay = run(train, make)
    assert equal(relayed, plain) and relay is not None


def test_hooks_on_layers_see_what_they_saw(automatic):
    def train(model, optimizer):
        seen = []
        model.blocks[2].register_forward_hook(lambda _, args, out: seen.append(out.detach()))
        model.blocks[2].register_full_backward_hook(lambda *gradients: seen.append(
            gradients[1][0].clone()))
        return plain_steps(model, optimizer) + seen
    make = lambda: Words(tied=False)  # noqa: E731
    plain, _ = run(train, make)
    automatic(1)
    relayed, relay = run(train, make)
    assert equal(relayed, plain) and relay is not None
    automatic(3)
    relayed, relay = run(train, make)
    assert relay is not None
    close(relayed, plain)


def test_functorch_and_compilers_find_the_plain_model(automatic):
    automatic(2)
    torch.manual_seed(0)
    model = Words(tied=False, block=Counting)
    plain_steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    relay = firn.relay.of(model)
    reference = copy.deepcopy(model)
    words, = words_of(1)

    def grads(of):
        values = dict(of.named_parameters())
        return torch.func.grad(lambda given: functional.cross_entropy(
            torch.func.functional_call(of, given, (words[:, :-1],)).flatten(0, 1),
            words[:, 1:].flatten()))(values)
    assert equal(list(grads(model).values()), list(grads(reference).values()))
    for found in (torch.jit.trace(model, words), torch.fx.symbolic_trace(model),
                  torch.export.export(model, (words,)).module(),
                  torch.func.vmap(lambda row: model(row[None])[0])):
        assert torch.equal(found(words), reference(words))
    compiled = torch.compile(model, backend="eager")
    expected = loss_of(reference, words)
    expected.backward()
    model.zero_grad()
    loss = loss_of(compiled, words)
    loss.backward()
    assert torch.equal(loss, expected)
    assert equal([each.grad for each in model.parameters()],
                 [each.grad for each in reference.parameters()])
    assert firn.relay.of(model) is relay


def test_a_script_of_the_model(automatic, capfd):
    automatic(2)
    model = Words(tied=False)
    plain_steps(model, torch.optim.SGD(model.parameters(), lr=0.1))
    words, = words_of(1)
    expected = model.eval()(words)
    capfd.readouterr()
    assert torch.equal(torch.jit.script(model)(words), expected)
    assert capfd.readouterr().err.startswith(
        "firn: relay: off for Words: torch.jit.script compiles its forward methods\n")
    assert firn.relay.of(model) is None and torch.jit.script.__wrapped__ is not None


def test_an_explicit_relay_goes_before(automatic, capfd):
    automatic(2)
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plain_steps(model, optimizer)
    mine = quietly(firn.relay, model, optimizer, 3)
    assert firn.relay.of(model) is mine
    mine.step(lambda part: loss_of(model, part), list(words_of(1)[0].chunk(3)))
    mine.close()
    assert firn.relay.of(model) is None and not vars(model).get("forward")
    capfd.readouterr()
    other = Words()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    relay = firn.relay(other, optimizer, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # (the doors' hook is none that keeps layers from stepping)
        for words in words_of(3):
            relay.step(lambda part: loss_of(other, part), list(words.chunk(3)))
    assert firn.relay.of(other) is relay
    assert capfd.readouterr().err == ""


def test_the_optimizer_is_not_kept_alive(automatic):
    automatic(2)
    model = Words()
    optimizer = torch.optim.AdamW(model.parameters())
    plain_steps(model, optimizer)
    optimizer.zero_grad()
    seen = weakref.ref(optimizer)
    del optimizer
    __import__("gc").collect()
    assert seen() is None and firn.relay.of(model) is not None
    plain_steps(model, torch.optim.AdamW(model.parameters()))


def test_optimizers_from_before_the_model_moves(automatic):
    def train(model, optimizer):
        model.double()
        return plain_steps(model, optimizer)
    plain, _ = run(train, Words)
    automatic(1)
    relayed, relay = run(train, Words)
    assert equal(relayed, plain) and relay is not None


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate(automatic, precision):
    accelerate = pytest.importorskip("accelerate")

    def train(model, optimizer):
        accelerator = accelerate.Accelerator(cpu=True, mixed_precision=precision,
                                             gradient_accumulation_steps=2)
        prepared, optimizer = accelerator.prepare(model, optimizer)
        losses = []
        for words in words_of(6):
            with accelerator.accumulate(prepared):
                loss = loss_of(prepared, words)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(prepared.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss)
        assert accelerator.unwrap_model(prepared) is model
        return losses
    make = lambda: Words(tied=False, drop=0.1)  # noqa: E731
    plain, _ = run(train, make)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    automatic(1)
    relayed, relay = run(train, make)
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    assert equal(relayed, plain) and relay is not None


def test_threads_that_train_models_of_their_own(automatic):
    expected, _ = run(plain_steps, lambda: Words(drop=0.0))
    automatic(2)
    torch.manual_seed(0)
    jobs = [Words() for _ in range(3)]
    for model in jobs[1:]:
        model.load_state_dict(jobs[0].state_dict())
    errors = []

    def body(model):
        try:
            plain_steps(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
        except BaseException as error:
            errors.append(error)
    threads = [threading.Thread(target=body, args=(model,)) for model in jobs]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
    for model in jobs:
        assert firn.relay.of(model) is not None
        close([each.detach() for each in model.parameters()],
              expected[4:4 + len(list(model.parameters()))])


def test_no_door_is_left_open(automatic):
    """The hook in front of all modules is gone once the model has a relay."""
    hooks = torch.nn.modules.module._global_forward_pre_hooks
    automatic(2)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert len(hooks) == 1
    with torch.no_grad():
        model(words_of(1)[0])
    assert len(hooks) == 1 and firn.relay.of(model) is None
    loss_of(model, words_of(1)[0])
    assert not hooks and firn.relay.of(model) is not None
    automatic(0)
    assert firn.relay.of(model) is None


SCRIPT = """
import torch
from torch import nn
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
for _ in range(3):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
import firn
print(firn.relay.of(model))
"""


@pytest.mark.parametrize("value, says, found", [
    ("2", r"firn: relay: 4 layers of Sequential, 2 micro-batches, from SGD's second step on\n",
     "firn.relay of Sequential"), ("0", "", "None"),
    ("many", r'(?s).*RuntimeWarning: firn: FIRN_RELAY: "many" is not a whole number from 0 to '
     r"65536\n.*", "None")])
def test_the_variable(firn_environment, value, says, found):
    done = subprocess.run([PYTHON, "-c", SCRIPT], env={**firn_environment, "FIRN_RELAY": value},
                          cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(says, done.stderr), done.stderr
    assert done.stdout.startswith(found), done.stdout


def test_a_bad_number_ends_a_strict_process(firn_environment):
    done = subprocess.run([PYTHON, "-c", "import torch; print('on')"], cwd="/", text=True,
                          env={**firn_environment, "FIRN_RELAY": "-1", "FIRN_STRICT": "1"},
                          capture_output=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == 'firn: FIRN_RELAY: "-1" is not a whole number from 0 to 65536\n'
